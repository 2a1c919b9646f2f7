"""The baselines equal transcriptions of their definitions, and their nulls closed forms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import spatial, stats

from bornbiased_jax import configs
from bornbiased_jax.analysis import theory
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines import similarities as baselines
from experiments.transforms import preserving
from small_networks import GEMMA2, GPT2, GROUPED, LLAMA, altered, random_networks
from textbook import gram_hsic


def pair(config):
  """Two networks that are related, but not the same."""
  params, other = random_networks(config, 2)
  return params, jax.tree.map(lambda x, y: np.float32(x + 0.5 * y), params, other)


def kernels(params, name):
  return np.asarray(params['blocks'][name]['kernel'], np.float64)


@pytest.mark.parametrize('config', [LLAMA, GROUPED, GPT2], ids=['llama', 'grouped', 'gpt2'])
def test_intrinsic(config):
  a, b = pair(config)
  deviations = lambda params, name: [
      stats.tstd(kernel, axis=None) for kernel in kernels(params, name)]
  expected = np.mean([stats.pearsonr(deviations(a, name), deviations(b, name)).statistic
                      for name in ('query', 'key', 'value', 'output')])
  assert baselines.intrinsic(a, b) == pytest.approx(expected, abs=1e-3)
  assert baselines.intrinsic(a, a) == pytest.approx(1)


def test_intrinsic_of_other_depths_and_widths():
  other, = random_networks(configs.get('tiny_gpt2', num_layers=5), 1)
  llama, = random_networks(LLAMA, 1)
  deep, shallow = ([[np.std(kernel, ddof=1) for kernel in kernels(params, name)]
                    for name in ('query', 'key', 'value', 'output')]
                   for params in (other, llama))
  middle = lambda x: [x[0], (x[0] + x[1]) / 2, x[1], (x[1] + x[2]) / 2, x[2]]
  expected = np.mean([np.corrcoef(x, middle(y))[0, 1] for x, y in zip(deep, shallow, strict=True)])
  assert baselines.intrinsic(other, llama) == pytest.approx(expected, abs=1e-3)
  with pytest.raises(InputError, match='at least two'):
    baselines.intrinsic(*random_networks(configs.get('tiny_gpt2', num_layers=1), 1), other)


def with_gains(config, seed):
  """A random network whose gains have been drawn as well."""
  random = np.random.default_rng(seed)
  params, = random_networks(config, 1)
  return {'blocks': {name: module | {'scale': random.normal(1, 0.4, module['scale'].shape)}
                     if 'scale' in module else module for name, module in params['blocks'].items()}}


@pytest.mark.parametrize('config, count', [(LLAMA, 2), (GPT2, 2), (GEMMA2, 4)],
                         ids=['llama', 'gpt2', 'gemma2'])
def test_norm_gains(config, count):
  """Those of all norms in blocks, of the layers that both networks have."""
  a = with_gains(config, 1)
  deeper = with_gains(dataclasses.replace(config, num_layers=5, windows=()), 2)
  names = [name for name in a['blocks'] if name.endswith('_norm')]
  cosines = [1 - spatial.distance.cosine(a['blocks'][name]['scale'][layer],
                                         deeper['blocks'][name]['scale'][layer])
             for name in names for layer in range(3)]
  assert len(names) == count
  assert baselines.norm_gains(a, deeper) == pytest.approx(np.mean(cosines), abs=1e-6)
  assert baselines.norm_gains(deeper, a) == baselines.norm_gains(a, deeper) < 0.95
  with_logits = {'blocks': a['blocks'] | {'sink_logit': np.ones((3, 4))}}
  assert baselines.norm_gains(a, with_logits) == pytest.approx(1)
  with pytest.raises(InputError, match='place or width'):
    baselines.norm_gains(a, with_gains(dataclasses.replace(config, width=16), 1))


@pytest.mark.parametrize('config', [LLAMA, GPT2], ids=['llama', 'gpt2'])
def test_pcs(config):
  a, b = pair(config)
  leaves = lambda params: jax.tree.leaves((params['blocks'], params['final_norm']))
  flat = [np.concatenate([np.ravel(leaf) for leaf in leaves(params)]) for params in (a, b)]
  cosine = np.dot(*flat) / np.prod([np.linalg.norm(x) for x in flat])
  assert baselines.pcs(a, b) == pytest.approx(cosine, abs=1e-5)
  with pytest.raises(InputError, match='different shapes'):
    baselines.pcs(a, *random_networks(GROUPED, 1))


@pytest.mark.parametrize('scheme, published', [('plain', 0.3611), ('gpt2', 0.4442)])
def test_pcs_of_independent_networks_is_not_zero(scheme, published):
  nano = configs.get('nano_llama2', init_scheme=scheme)
  assert theory.independent_pcs(nano) == pytest.approx(published, abs=2e-4)
  config = configs.get('tiny_gpt2', init_scheme=scheme)
  drawn = baselines.pcs(*random_networks(config, 2))
  assert drawn == pytest.approx(theory.independent_pcs(config), abs=0.005)


@pytest.mark.parametrize('unbiased', [False, True])
def test_reef(unbiased):
  rng = np.random.default_rng(0)
  a = rng.standard_normal((50, 20)) * np.arange(1, 21) + 3
  b = a[:, :12] ** 2 + 5 * rng.standard_normal((50, 12))
  x, y = stats.zscore(a), stats.zscore(b)
  norms = np.sqrt(gram_hsic(x, x, unbiased) * gram_hsic(y, y, unbiased))
  expected = gram_hsic(x, y, unbiased) / norms
  assert baselines.reef(a, b, unbiased) == pytest.approx(expected, abs=1e-5)
  assert baselines.reef(a, a, unbiased) == pytest.approx(1, abs=1e-5)
  with pytest.raises(InputError, match='same, at least 4'):
    baselines.reef(a, b[:3], unbiased)


def test_reef_of_independent_states():
  """The biased estimate is d / (d + n), and the unbiased one is 0."""
  states = np.random.default_rng(0).standard_normal((5, 2, 200, 768), np.float32)
  biased = np.mean([baselines.reef(*pair) for pair in states])
  assert biased == pytest.approx(768 / (768 + 200), abs=0.01)
  unbiased = np.mean([baselines.reef(*pair, unbiased=True) for pair in states])
  assert unbiased == pytest.approx(0, abs=0.01)


def transcribed_ics(params_a, params_b, ids, companion, config):
  def invariants(params):
    x, made = np.asarray(params['embedding'], np.float64)[ids], []
    for layer in (-2, -1):
      query, key, value, output, up, down = (kernels(params, name)[layer] for name in
                                             ('query', 'key', 'value', 'output', 'up', 'down'))
      K, share = config.head_size, config.num_heads // config.num_kv_heads
      own = [slice(h // share * K, (h // share + 1) * K) for h in range(config.num_heads)]
      heads = [slice(h * K, (h + 1) * K) for h in range(config.num_heads)]
      pairs = list(zip(heads, own, strict=True))
      scores = sum(x @ query[:, head] @ key[:, group].T @ x.T for head, group in pairs)
      values = sum(x @ value[:, group] @ output[head] @ x.T for head, group in pairs)
      units = up * kernels(params, 'gate')[layer] if config.gated_mlp and not companion else up
      made += [scores, values, x @ units @ down @ x.T]
    return np.concatenate([np.ravel(m if companion else stats.zscore(m, axis=None)) for m in made])

  a, b = invariants(params_a), invariants(params_b)
  return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize('companion', [False, True])
@pytest.mark.parametrize('config', [LLAMA, GROUPED, GPT2], ids=['llama', 'grouped', 'gpt2'])
def test_ics(config, companion):
  a, b = pair(config)
  ids = np.arange(5, 60, 3)
  made = baselines.ics(a, b, ids, companion=companion, head_size=config.head_size)
  assert made == pytest.approx(transcribed_ics(a, b, ids, companion, config), abs=1e-4)
  assert 0.1 < made < 0.999


def test_ics_refuses():
  a, b = pair(GROUPED)
  with pytest.raises(InputError, match='give head_size'):
    baselines.ics(a, b)
  with pytest.raises(InputError, match='from 0 to 69'):
    baselines.ics(a, b, np.array([1, 70]), head_size=8)
  with pytest.raises(InputError, match='2 layers; a model has 1'):
    baselines.ics(*pair(configs.get('tiny_gpt2', num_layers=1)))


def test_what_is_constant_has_no_similarity():
  with pytest.raises(InputError, match='constant'):
    baselines.reef(np.ones((9, 4)), np.ones((9, 4)))
  params, = random_networks(LLAMA, 1)
  repeat_first = lambda leaf: np.broadcast_to(leaf[:1], leaf.shape)
  same = params | {'blocks': jax.tree.map(repeat_first, params['blocks'])}
  with pytest.raises(InputError, match='constant'):
    baselines.intrinsic(same, params)


def test_ics_is_invariant_to_permutations():
  params, = random_networks(LLAMA, 1)
  for change in (preserving.permute_units, preserving.permute_heads, preserving.permute_channels):
    _, changed = altered(change, LLAMA, params, jax.random.key(0))
    assert baselines.ics(params, changed) == pytest.approx(1, abs=1e-4)
    assert baselines.ics(params, changed, jnp.arange(70)) == pytest.approx(1, abs=1e-4)
