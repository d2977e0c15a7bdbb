"""Layer 9: optimisers and schedules of their learning rates.

May import layers 0 to 8. Names and semantics are PyTorch's.
"""
