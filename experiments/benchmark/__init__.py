"""One module per benchmark, run as python -m experiments.benchmark NAME."""
