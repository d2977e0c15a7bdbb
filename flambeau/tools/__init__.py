"""Layer 11: programs around the library: the demonstration, measurements, pictures of graphs.

May import layers 0 to 10. Each tool is a module that runs with `python -m`.
"""
