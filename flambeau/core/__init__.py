"""Layer 1: what a tensor is before it has operations: dtypes and their promotion, devices, layouts, symbolic sizes, storage.

May import `base` only. Nothing here launches a kernel or knows an op.
"""
