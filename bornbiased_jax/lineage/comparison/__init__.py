"""Tests of two networks: of the order of features, and of hidden states."""
