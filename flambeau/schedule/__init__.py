"""Layer 4: from a graph to fused groups, buffers and kernels: fusion, memory plan, tuning.

May import layers 0 to 3. It looks at the kinds of lowering (pointwise, reduction, view, indexing, template, external), never at the
names of ops.
"""
