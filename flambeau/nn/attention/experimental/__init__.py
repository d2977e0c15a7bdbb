"""`nn.attention.experimental`: attention over pages."""
