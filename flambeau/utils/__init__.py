"""Layer 9: the name space `torch.utils` of PyTorch: data loading, checkpointing, and other public names found there.

May import layers 0 to 8. The name is PyTorch's; nothing internal belongs here.
"""
