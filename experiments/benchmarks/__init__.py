"""One module a benchmark; run as python -m experiments.benchmark NAME."""
