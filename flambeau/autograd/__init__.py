"""Layer 6: derivatives as the user meets them: the tape, backward, grad, hooks, saved tensors, custom functions.

May import layers 0 to 5. The rules themselves belong to the declarations of ops.
"""
