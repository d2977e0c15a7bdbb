"""Layer 7: from a Python function to a graph: tracing, and the guards that say when a trace may be used again.

May import layers 0 to 6. It does not optimise what it captured.
"""
