"""Layer 3: kernels with a structure of their own: gemm, attention, convolution, scan, sort, small linear algebra, random numbers.

May import layers 0 to 2. A template is a function from a target and parameters to a module of the DSL; it does not know which op
wants it.
"""
