"""Random numbers in the shapes of a network's intermediates, for tests of statistics."""

import jax
import numpy as np

V, L, N, T, D = 13, 3, 24, 5, 6
GENERATOR = np.random.default_rng(0)


def around(mean, shape):
  return (mean + GENERATOR.standard_normal(shape)).astype(np.float32)


OUTPUTS = {
    # The logits are whole numbers, so that many tie.
    'logits_last': GENERATOR.integers(4, size=(N, V)).astype(np.float32),
    'hidden': around(0.5, (N, T, D)),
    'hidden_last': around(0.5, (N, D)),
    'residual': around(np.reshape([0, 1, 9], (L, 1, 1, 1)), (L, N, T, D)),
    'residual_last': around(np.reshape([0, 1, 9], (L, 1, 1)), (L, N, D)),
}


def results(statistic, outputs):
  return statistic.summarize(jax.tree.map(np.asarray, jax.jit(statistic.measure)(outputs)))
