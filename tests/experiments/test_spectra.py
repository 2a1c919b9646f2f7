"""Spectra: no disguise changes them, and modes of random matrices are as theory says."""

import functools
import itertools

import jax
import numpy as np
import pytest

from bornbiased_jax import configs, models
from experiments.spectra import statistic
from experiments.spectra.__main__ import altered
from experiments.transforms.preserving import PRESERVING

SIZE = dict(num_layers=5, width=48, mlp_width=96, num_heads=4, vocab_size=70)
FAMILIES = {'tiny_llama2': configs.get('tiny_llama2', **SIZE, num_kv_heads=2),
            'tiny_gpt2': configs.get('tiny_gpt2', **SIZE)}


@functools.cache
def network(name, seed):
  """A random network whose gains are not 1."""
  params = models.init_params(FAMILIES[name], seed)
  random = np.random.default_rng(seed)
  return FAMILIES[name], jax.tree_util.tree_map_with_path(
      lambda path, x: x * random.uniform(0.5, 2, x.shape) if path[-1].key == 'scale' else x, params)


@functools.cache
def spectra(name, seed):
  return statistic.spectra(*network(name, seed))


@pytest.mark.parametrize('name, change', [
    (name, change) for name, change in itertools.product(FAMILIES, PRESERVING)
    if (name, change) != ('tiny_gpt2', 'permute channels')])
def test_no_disguise_changes_spectra(name, change):
  before = spectra(name, 1)
  after = statistic.spectra(*PRESERVING[change](*network(name, 1), jax.random.key(0)))
  assert len(before) == (9 if name == 'tiny_llama2' else 8)
  for ours, theirs in zip(before, after, strict=True):
    assert ours.shape[0] == 5 and ours.shape[1] >= 23
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_a_disguise_of_all_changes_is_one_program():
  """Which is traced here and not compiled; each change by itself is run above."""
  config, params = network('tiny_llama2', 1)
  disguised = jax.eval_shape(functools.partial(altered, config, 'disguise'), params,
                             jax.random.key(0))
  assert jax.tree.map(np.shape, disguised) == jax.tree.map(np.shape, params)


def test_products_of_heads_are_those_that_attention_computes():
  config, params = network('tiny_llama2', 2)
  block = jax.tree.map(lambda x: np.asarray(x[3], np.float64), params['blocks'])
  gain = np.diag(block['attention_norm']['scale'])
  head = lambda name, h: gain @ block[name]['kernel'][:, 12 * h:12 * h + 12]
  mixed = sum(head('value', h // 2) @ block['output']['kernel'][12 * h:12 * h + 12]
              for h in range(4))
  scores = sum(head('query', h) @ head('key', h // 2).T for h in range(4))
  grams = sum(head('query', h) @ head('key', h // 2).T @ head('key', h // 2) @ head('query', h).T
              for h in range(4))
  found = spectra('tiny_llama2', 2)
  for matrix, k, power in ((mixed, 2, 1), (scores, 5, 1), (grams, 7, 2)):
    expected = np.linalg.svd(matrix, compute_uv=False)
    log = found[k][3]
    np.testing.assert_allclose(power * log, np.log(expected[:len(log)]), rtol=1e-6, atol=1e-6)


def test_modes_of_random_matrices_are_as_rigid_as_theory_says():
  """Var of a mode of degree m is 1 / (π² m) in units of the distance of eigenvalues (β = 1: 2 β).

  Squares of singular values of real Gaussian matrices are eigenvalues with β = 1.
  """
  random, size = np.random.default_rng(0), 64
  log_LN = np.stack([np.log(np.linalg.svd(random.normal(size=(2 * size, size)), compute_uv=False))
                     for _ in range(200)])
  variance_M = statistic.modes(log_LN).var(axis=0)[:16]
  assert 0.6 < variance_M.min() / variance_M.mean() and variance_M.max() / variance_M.mean() < 1.6
  assert variance_M.mean() == pytest.approx(1 / np.pi**2, rel=0.5)


def test_what_changes_steadily_with_depth_is_nothing():
  x_LM = np.arange(7.0)[:, None] * [1, -2] + 3
  np.testing.assert_allclose(statistic.against_neighbours(x_LM), np.zeros((5, 2)), atol=1e-12)


def test_unrelated_networks_have_a_normal_z_and_copies_a_large_one():
  all_modes = [[statistic.modes(x) for x in spectra('tiny_llama2', seed)]
               for seed in range(12)]
  z = [statistic.z_of(statistic.agreement(a, b)) for a, b in itertools.combinations(all_modes, 2)]
  assert abs(np.mean(z)) < 0.4 and 0.7 < np.std(z) < 1.3 and max(np.abs(z)) < 4
  assert statistic.z_of(statistic.agreement(all_modes[0], all_modes[0])) > 10
