"""Layer 9: modules, parameters, initialisation, losses and the functional forms of all of them.

May import layers 0 to 8. Names and semantics are PyTorch's.
"""
