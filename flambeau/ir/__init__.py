"""Layer 2: the machinery of ops and graphs: how an op is declared and bound, the interpreter stack, Graph, printer, verifier.

May import `base` and `core`. No op is declared here and no kernel is made here; calling an op hands it to the interpreter on top
of the stack.
"""
