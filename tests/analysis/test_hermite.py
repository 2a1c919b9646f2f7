"""The series of an activation's covariance equals quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.analysis.hermite import covariance_powers


@pytest.mark.parametrize('gated', [False, True])
@pytest.mark.parametrize('activation', [jax.nn.gelu, jax.nn.silu, jnp.tanh])
@pytest.mark.parametrize('scale', [0.5, 1.5])
def test_covariance_equals_gauss_hermite_quadrature(activation, scale, gated):
  node, weight = np.polynomial.hermite_e.hermegauss(80)
  weight = np.outer(weight, weight) / weight.sum() ** 2
  u, other = np.meshgrid(node, node, indexing='ij')
  powers = covariance_powers(activation, scale, gated)
  for r in (-0.8, 0.0, 0.3, 0.9, 1.0):
    v = r * u + np.sqrt(1 - r * r) * other
    expected = np.sum(weight * np.asarray(activation(scale * u) * activation(scale * v)))
    expected *= scale**2 * r if gated else 1.0
    np.testing.assert_allclose(jnp.polyval(powers, r), expected, rtol=1e-4, atol=1e-6)
