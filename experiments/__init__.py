"""Each experiment of the paper as one command: python -m experiments.NAME."""
