"""A history of checkpoints: how it is read, and what may be wrong with it."""
