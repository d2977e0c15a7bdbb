"""Layer 5: graph to graph: decomposition, folding, elimination of what is dead or common, functionalisation, splitting.

May import layers 0 to 4. A pass is a verb, takes a graph and returns one, and leaves a graph that the verifier accepts.
"""
