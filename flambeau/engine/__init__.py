"""Layer 5: carrying plans out: the eager path with its cache of plans, and the executor of compiled graphs.

May import layers 0 to 4. Eager is a graph of one op whose plan is kept by op, input specs and attributes.
"""
