"""Other fingerprints and published tests, to compare with."""
