"""The spread of representations at each position equals what numpy computes."""

import numpy as np

from bornbiased_jax.analysis import positions
from random_outputs import OUTPUTS, results


def test_positional_std():
  expected = np.sqrt(np.var(OUTPUTS['residual'].astype(np.float64), axis=1, ddof=1).mean(-1))
  actual = results(positions.positional_std('residual'), OUTPUTS)['std']
  np.testing.assert_allclose(actual, expected, rtol=1e-4)
