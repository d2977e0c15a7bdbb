"""Layer 4: the declarations: one class per op with its signature, shape rule, lowering, derivatives, reference and samples.

May import layers 0 to 3. Everything else about an op (function, method, in-place form, tests, documentation) is derived from its
declaration. No other package asks for an op by name.
"""
