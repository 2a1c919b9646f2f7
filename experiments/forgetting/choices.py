"""What the settings choose from, as numbers and words alone, so that --help needs no JAX."""

PEAK_LR = {'adamw': 1e-3, 'sgd': 0.1, 'muon': 1e-3}
# What one factor changes at a time.
VARIANTS = {
    'plain': {}, 'embeddings do not decay': {}, 'warm restart': {},
    'batch / 4': {'batch': 0.25}, 'batch × 4': {'batch': 4}}
# Siblings branch off between parts of a training.
SEGMENTS = 4
