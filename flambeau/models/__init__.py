"""Layer 11: models ready to run, and the reading of their checkpoints and tokenizers.

May import layers 0 to 10. Model code uses the public interface only, as a user's would.
"""
