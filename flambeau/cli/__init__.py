"""Layer 12: the `flambeau` command: reads arguments and calls the library.

May import everything below. It contains no logic of its own.
"""
