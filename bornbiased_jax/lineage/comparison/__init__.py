"""Tests of two models: of the order of features, and of hidden states."""
