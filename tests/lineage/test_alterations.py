"""Alterations that keep a network's function keep its logits; damage does what it says; and what finds them out."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, alterations, baselines, seedprint, verdict
from bornbiased_jax.lineage.fingerprints import fingerprint
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import Transformer

SMALL = dict(num_layers=3, width=32, mlp_width=48, num_heads=4, vocab_size=70)
CONFIGS = {
    'llama': configs.get('tiny_llama2', **SMALL),
    'grouped with biases': configs.get('tiny_llama2', **SMALL, num_kv_heads=2, qkv_bias=True, mlp_bias=True,
                                       tied_head=True),
    'gpt2': configs.get('tiny_gpt2', **SMALL),
    'learned positions': configs.get('tiny_gpt2', **SMALL, positions='learned'),
    'qwen3': configs.get('tiny_llama2', **SMALL, qk_norm=True),
}
IMPOSSIBLE = {('rotate channels', 'gpt2'), ('rotate channels', 'learned positions'), ('turn queries', 'qwen3')}


def trained(config, seed=1):
  """Parameters of which no gain is 1 and no bias 0."""
  params = init_params(config, seed)
  shift = lambda path, leaf: leaf + (0.2 * jax.random.normal(jax.random.key(len(str(path))), leaf.shape)
                                     if path[-1].key in ('scale', 'bias') else 0)
  return jax.tree_util.tree_map_with_path(shift, params)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(config, params):
  tokens = jax.random.randint(jax.random.key(5), (4, 20), 0, config.vocab_size)
  with jax.default_matmul_precision('highest'):
    return Transformer(config).apply({'params': params}, tokens)


def logits(config, params):
  return np.asarray(logits_of(config, params))


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.parametrize('alteration', alterations.PRESERVING)
def test_a_preserving_alteration_keeps_the_logits(name, alteration):
  config, params = CONFIGS[name], trained(CONFIGS[name])
  if (alteration, name) in IMPOSSIBLE:
    with pytest.raises(InputError):
      alterations.PRESERVING[alteration](config, params, jax.random.key(0))
    return
  changed_config, changed = alterations.PRESERVING[alteration](config, params, jax.random.key(0))
  before, after = logits(config, params), logits(changed_config, changed)
  assert np.abs(after - before).max() < 1e-4 * np.abs(before).max()
  moved = [not np.array_equal(leaf, changed['blocks'][name][kind]) for name, leaves in params['blocks'].items()
           for kind, leaf in leaves.items()]
  assert any(moved)


@pytest.mark.parametrize('alteration', alterations.DAMAGING)
def test_damage_grows_with_its_strength(alteration):
  change, strengths = alterations.DAMAGING[alteration]
  config, params = CONFIGS['llama'], init_params(CONFIGS['llama'], 1)
  before = logits(config, params)
  hurt = [np.abs(logits(config, change(config, params, jax.random.key(0), strength)[1]) - before).mean()
          for strength in strengths]
  assert hurt == sorted(hurt) and hurt[0] > 0


def test_damage_is_what_it_says():
  config, key = CONFIGS['llama'], jax.random.key(0)
  params = init_params(config, 1)
  up = lambda altered: np.asarray(altered[1]['blocks']['up']['kernel'])
  before = up((config, params))
  assert np.mean(up(alterations.prune(config, params, key, 0.3)) == 0) == pytest.approx(0.3, abs=0.01)
  assert np.unique(np.round(up(alterations.quantize(config, params, key, 4))[0, :, 0], 9)).size <= 15
  noise = up(alterations.add_noise(config, params, key, 0.5)) - before
  assert np.std(noise) == pytest.approx(0.5 * before.std(), rel=0.05)
  added = up(alterations.add_low_rank(config, params, key, 0.5, rank=3)) - before
  assert np.linalg.matrix_rank(added[0], tol=1e-4) == 3
  assert np.linalg.norm(added[0]) == pytest.approx(0.5 * np.linalg.norm(before[0]), rel=1e-4)
  redrawn = up(alterations.redraw_layers(config, params, key, 1 / 3))
  assert np.array_equal(redrawn[:2], before[:2]) and not np.isclose(redrawn[2], before[2]).any(axis=0).all()
  other = 2 * up(alterations.average(config, params, key, 0.5)) - before
  assert abs(np.corrcoef(other.ravel(), before.ravel())[0, 1]) < 0.05


ALIGNED = configs.get('tiny_llama2', num_layers=2, width=32, mlp_width=48, num_heads=4, vocab_size=300)
ALIGNED_GPT2 = configs.get('tiny_gpt2', num_layers=2, width=32, mlp_width=48, num_heads=4, vocab_size=300)
PROBE = Probe('gaussian', 1000, 8)


@pytest.mark.parametrize('config, hidden_by', [
    (ALIGNED, alterations.rotate_channels), (ALIGNED, alterations.permute_channels),
    (ALIGNED_GPT2, alterations.permute_channels),
])
def test_the_aligned_test_sees_through_a_change_of_basis(config, hidden_by):
  params = trained(config)
  noisy = alterations.add_noise(config, params, jax.random.key(2), 0.3)
  suspect = hidden_by(*noisy, jax.random.key(3))
  assert alignment.aligned_test((config, params), suspect, PROBE).z > 8
  own = lambda config, params: fingerprint(config, params, Probe('tokens', 1000, 8)).hidden_ND
  assert seedprint.calibrated_test(own(config, params), own(*noisy)).z > 8
  assert abs(seedprint.calibrated_test(own(config, params), own(*suspect)).z) < 4


def test_the_aligned_test_does_not_accuse():
  networks = [(ALIGNED, init_params(ALIGNED, seed)) for seed in range(6)]
  z = [alignment.aligned_test(a, b, PROBE).z for i, a in enumerate(networks) for b in networks[:i]]
  assert np.abs(z).max() < 4 and abs(np.mean(z)) < 1


def test_the_aligned_verdict():
  base = ALIGNED, trained(ALIGNED)
  hidden = alterations.rotate_channels(*base, jax.random.key(3))
  report, result = verdict.compare_aligned(base, hidden, PROBE, ({'name': 'a'}, {'name': 'b'}))
  assert report['verdict'] == 'related' and report['z'] == result.z and report['suspect'] == {'name': 'b'}
  assert json.loads(json.dumps(report)) == report
  assert report['embedding_fit'] > 0.99
  # Agreement without a common embedding is no accusation.
  other = init_params(ALIGNED, 7)['embedding']
  mixed = base[1] | {'embedding': 0.5 * base[1]['embedding'] + other}
  report, _ = verdict.compare_aligned(base, (ALIGNED, mixed), PROBE)
  assert report['verdict'] == 'inconclusive' and report['embedding_fit'] < 0.6 and report['z'] > 8
  assert 'trained on similar text' in report['reasons'][-1]
  report, _ = verdict.compare_aligned(base, (ALIGNED, init_params(ALIGNED, 7)), PROBE)
  assert report['verdict'] == 'unrelated' and 'embeddings were replaced' in report['reasons'][1]
  assert abs(report['embedding_fit']) < 0.1
  gpt2 = ALIGNED_GPT2, init_params(ALIGNED_GPT2, 1)
  report, result = verdict.compare_aligned(base, gpt2, PROBE)
  assert report['verdict'] == 'inconclusive' and 'cannot be aligned: rmsnorm' in report['reasons'][0] and not result


@pytest.mark.parametrize('change, message', [
    (dict(probe=Probe('tokens', 1000, 8)), 'gaussian probe'), (dict(width=64), 'no basis in common'),
    (dict(norm='layernorm'), 'no basis in common'), (dict(vocab_size=63), 'tokens a channel'),
])
def test_what_cannot_be_aligned(change, message):
  probe, config = change.pop('probe', PROBE), dataclasses.replace(ALIGNED, **change)
  with pytest.raises(InputError, match=message):
    alignment.aligned_test((ALIGNED, init_params(ALIGNED, 1)), (config, init_params(config, 2)), probe)


def test_matched_units():
  config, params, other = CONFIGS['llama'], init_params(CONFIGS['llama'], 1), init_params(CONFIGS['llama'], 2)
  noisy = alterations.add_noise(config, params, jax.random.key(0), 0.5)
  permuted = alterations.permute_units(*noisy, jax.random.key(1))[1]
  test = alignment.matched_units_test
  assert test(params, noisy[1]).log10_p < -20 and test(params, noisy[1]).statistic > 0.9
  assert test(params, permuted).log10_p > -3
  assert test(params, permuted, against_gate=True).log10_p < -20
  for kind in (False, True):
    assert test(params, other, against_gate=kind).log10_p > -3
  with pytest.raises(InputError, match='without equally large gate'):
    test(*[init_params(CONFIGS['gpt2'], seed) for seed in (1, 2)], against_gate=True)


@pytest.mark.parametrize('against_gate', [False, True])
def test_matched_units_of_independent_networks_have_uniform_p_values(against_gate):
  config = configs.get('tiny_llama2', **SMALL | dict(num_layers=1))
  networks = [init_params(config, seed) for seed in range(200)]
  pairs = zip(networks[::2], networks[1::2], strict=True)
  p = 10 ** np.array([alignment.matched_units_test(*pair, against_gate=against_gate).log10_p for pair in pairs])
  assert stats.kstest(p, 'uniform').pvalue > 0.001


def test_dead_units_can_be_matched():
  params = init_params(CONFIGS['llama'], 1)
  up = params['blocks']['up']
  dead = params | {'blocks': params['blocks'] | {'up': {'kernel': up['kernel'].at[:, :, :5].set(0)}}}
  assert alignment.matched_units_test(params, dead).log10_p < -10


def test_ics_is_invariant_to_permutations():
  config, params = CONFIGS['llama'], init_params(CONFIGS['llama'], 1)
  for alteration in (alterations.permute_units, alterations.permute_heads, alterations.permute_channels):
    changed = alteration(config, params, jax.random.key(0))[1]
    assert baselines.ics(params, changed) == pytest.approx(1, abs=1e-4)
    assert baselines.ics(params, changed, jnp.arange(70)) == pytest.approx(1, abs=1e-4)
