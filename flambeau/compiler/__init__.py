"""Layer 8: `compile`: captures a function, runs the passes, schedules it, and calls the plan while its guards hold.

May import layers 0 to 7.
"""
