"""Benchmarks, each run as python -m experiments.benchmark NAME."""
