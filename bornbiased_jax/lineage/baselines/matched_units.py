"""The published test of matched MLP units (Zhu et al. 2025), to compare with."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from bornbiased_jax.errors import InputError


class MatchedUnits(NamedTuple):
  """The result of `matched_units_test`.

  Attributes:
    statistic: mean over layers of Spearman's rho.
    log10_p: log10 of the one-sided p-value of all layers, combined by Fisher's method.
    layer_L: rho of each layer.
  """

  statistic: float
  log10_p: float
  layer_L: np.ndarray


def matched_units_test(params_a: dict, params_b: dict, *,
                       against_gate: bool = False) -> MatchedUnits:
  """Tests whether the MLP units of two models correspond to each other (Zhu et al. 2025).

  In each layer, the units of both models are matched by the cosines of their up-projections
  (linear assignment). If the models are independent, this matching is a uniformly random
  permutation, and its Spearman's rho with the identity is nearly N(0, 1 / (F - 1)). The p-values
  of the layers are combined by Fisher's method.

  A hidden permutation of the units escapes this. With `against_gate`, the matching is
  therefore compared not with the identity but with the matching by gate-projections,
  which such a permutation changes in the same way. The null then also needs the up-
  and gate-projection of a unit to be independent, as they are at initialization.

  As published, units that are dead (0) in the same places of both models are matched there, which
  makes the p-value too small.

  Raises:
    InputError: the MLPs have different shapes, or no gate.

  Example:
    >>> import jax
    >>> from bornbiased_jax import lineage
    >>> params = {'blocks': {'up': {'kernel': jax.random.normal(jax.random.key(0), (2, 8, 20))}}}
    >>> round(lineage.matched_units_test(params, params).statistic, 3)
    1.0
  """
  rho_L, log_p_L = [], []
  names = ('up', 'gate') if against_gate else ('up',)
  for matchings in zip(*(_matchings(params_a, params_b, name) for name in names), strict=True):
    order = matchings[1] if against_gate else np.arange(len(matchings[0]))
    rho = scipy.stats.spearmanr(matchings[0], order).statistic
    rho_L.append(rho)
    log_p_L.append(scipy.stats.norm.logsf(rho * math.sqrt(len(order) - 1)))
  log_p = scipy.stats.chi2.logsf(-2 * np.sum(log_p_L), 2 * len(log_p_L))
  return MatchedUnits(float(np.mean(rho_L)), float(log_p / math.log(10)), np.array(rho_L))


def _matchings(params_a, params_b, name):
  """For each layer, the unit of B with which each unit of A is matched."""
  kernels = [params['blocks'][name]['kernel'] if name in params['blocks'] else None
             for params in (params_a, params_b)]
  if any(kernel is None for kernel in kernels) or kernels[0].shape != kernels[1].shape:
    raise InputError(f'models without equally large {name}-projections have no units to match')
  for layers in zip(*kernels, strict=True):
    a, b = (kernel_DF / jnp.maximum(jnp.linalg.norm(kernel_DF, axis=0, keepdims=True), 1e-30)
            for kernel_DF in layers)
    yield scipy.optimize.linear_sum_assignment(np.asarray(a.T @ b), maximize=True)[1]
