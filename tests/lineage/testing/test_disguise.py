"""What no change of parts can hide is alike in a copy, and not in unrelated networks."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage import levels
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.testing import disguise, every_test
from bornbiased_jax.lineage.transforms import preserving
from bornbiased_jax.models.initialization import init_params
from small_networks import DEEP

PROBE = Probe('tokens', 400, 8)
NAMES = 'hidden states, any basis', 'units, any order'


@functools.cache
def base(seed=1):
  return signature.of_network(DEEP, init_params(DEEP, seed), PROBE)


def test_a_copy_in_disguise_is_alike():
  network = DEEP, init_params(DEEP, 1)
  for change in (preserving.permute_units, preserving.mix_values, preserving.permute_heads,
                 preserving.rotate_channels):
    network = change(*network, jax.random.key(3))
  results = every_test.run_tests(base(), signature.of_network(*network, PROBE))
  assert results[NAMES[0]].statistic == pytest.approx(1, abs=1e-3)
  assert results[NAMES[1]].statistic > 2 * levels.ALIKE_IN_ANY_ORDER
  assert all(results[name].log10_p > -3 for name in every_test.DECIDING)


def test_unrelated_networks_are_not():
  results = every_test.run_tests(base(), base(2))
  assert not any(results[name].is_alike(7) for name in NAMES)


def test_the_basis_of_embeddings_is_found_though_some_do_not_fit():
  random = np.random.default_rng(0)
  a = random.standard_normal((200, 12))
  turn = np.linalg.qr(random.standard_normal((12, 12)))[0]
  b = a @ turn
  b[::4] = 30 * random.standard_normal((50, 12))
  assert np.abs(disguise.embedding_change(a, b) - turn).max() < 0.2
