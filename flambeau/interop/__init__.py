"""Layer 9: exchange with other packages: NumPy, DLPack, safetensors, checkpoints of PyTorch.

May import layers 0 to 8. The other package is imported only when one of its objects or files is at hand.
"""
