"""Pairs of networks whose lineage is known, made to fool the verdict."""
