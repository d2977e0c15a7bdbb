"""Layer 9: what tests of programs use."""
