"""Verdicts on pairs of dossiers: what is said, and why."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alterations, damage, dossiers, methods, reading, verdict
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.models.initialization import init_params
from small_networks import ALIGNED, ALIGNED_GPT2, GPT2, trained

PROBE = Probe('tokens', 1000, 8)


def answers(hidden, inputs=None, kind='tokens'):
  inputs = np.zeros_like(hidden) if inputs is None else inputs
  return Fingerprint(hidden.astype(np.float32), inputs.astype(np.float32),
                     {'schema': 1, 'probe': {'hash': 'x', 'kind': kind}, 'model': {}, 'about': {}})


def noise(seed, n=2000, width=32):
  return np.random.default_rng(seed).standard_normal((n, width))


def sketch(seed, units=64):
  draw = lambda i, *shape: np.random.default_rng([seed, i]).standard_normal(shape)
  long = {'up': draw(0, 2, units, 32), 'down': draw(1, 2, units, 32),
          'value': draw(2, 2, 4, 8, 32), 'output': draw(3, 2, 4, 8, 32)}
  return {name: np.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))
          for name, x in long.items()}


def dossier(tokens, vectors=None, weights=None, name='a'):
  """A dossier of these answers; vectors are answered by the same numbers if not given."""
  vectors = tokens if vectors is None else vectors
  return Dossier(answers(tokens), answers(vectors, kind='sphere'), weights, None, {'name': name})


BASE = dossier(noise(1), noise(2), sketch(1))


@pytest.mark.parametrize('suspect, expected, reason', [
    (dossier(noise(3), noise(4), sketch(2)), 'unrelated', 'would also look unrelated'),
    (dossier(noise(3), noise(4), sketch(1)), 'related', 'one seed by the same code'),
    (dossier(noise(1), noise(4), sketch(2)), 'inconclusive', 'students of one teacher'),
    (dossier(noise(3), noise(2), sketch(2)), 'inconclusive', 'in their order'),
    (dossier(-noise(1), noise(4), sketch(2)), 'inconclusive', 'students of one teacher'),
    (dossier(noise(1), noise(2)), 'inconclusive', 'Only answers are known'),
    (dossier(noise(3), noise(4)), 'unrelated', 'would also look unrelated'),
    (dossier(np.ones((2000, 32)), noise(4)), 'inconclusive', '32 of 32 channels are constant'),
    (dossier(noise(1, width=16)), 'not comparable', '32 and 16 residual channels'),
])
def test_verdicts(suspect, expected, reason):
  report = verdict.compare(BASE, suspect)
  assert report['verdict'] == expected, report
  assert reason in ' '.join(report['reasons'])
  assert json.loads(json.dumps(report)) == report


def test_the_p_value_is_that_of_all_witnesses_that_can_accuse():
  report = verdict.compare(BASE, dossier(noise(3), noise(4), sketch(1)))
  accusers = [row['p_value'] for row in report['witnesses'] if row['accuses']]
  assert len(accusers) == 2 and report['p_value'] == pytest.approx(2 * min(accusers))
  assert all(row['p_value'] >= 10**row['normal_log10_p'] for row in report['witnesses'])


def test_what_depends_on_tokenizers_is_said_where_nothing_was_found():
  report = verdict.compare(BASE, dossier(noise(3), noise(4), sketch(2)))
  assert report['reasons'][-1] == verdict.TOKENIZERS
  report = verdict.compare(BASE, dossier(noise(3), noise(4), sketch(1)))
  assert verdict.TOKENIZERS not in report['reasons']


def test_few_sequences_are_not_enough_to_call_networks_unrelated():
  few = [dossier(noise(seed, 500), noise(seed + 5, 500), sketch(seed)) for seed in (1, 2)]
  report = verdict.compare(*few)
  assert report['verdict'] == 'inconclusive' and 'use 1000 at least' in report['reasons'][-1]


def test_weak_evidence_of_order_does_not_accuse():
  """All units are a little like those of the base."""
  weights = sketch(2)
  for name in ('up', 'down'):
    weights[name] += 0.03 * sketch(1)[name]
  report = verdict.compare(BASE, dossier(noise(3), noise(4), weights))
  assert report['verdict'] == 'inconclusive' and 'an accusation needs' in report['reasons'][-1]


def test_who_cannot_be_heard_is_not_innocent():
  """Some units are those of the base, but no more than a pattern could make alike."""
  weights = sketch(2)
  for name in ('up', 'down'):
    weights[name][:, :3] = sketch(1)[name][:, :3]
  known = {name: weights[name] for name in ('up', 'down')}
  for heard in (weights, known):
    report = verdict.compare(BASE, dossier(noise(3), noise(4), heard))
    assert report['verdict'] == 'inconclusive'
    assert 'might have been seen' in report['reasons'][-1]
  report = verdict.compare(BASE, dossier(noise(1), noise(4), known))
  assert report['verdict'] == 'inconclusive' and 'no order of hidden' in report['reasons'][1]


def test_sorted_units_accuse_nobody():
  """A common direction by which both sort their units makes their order agree."""
  def sorted_sketch(seed):
    weights, direction_R = sketch(seed), np.float32(noise(9, 1)[0] / 6)
    for name in ('up', 'down'):
      weights[name] += np.linspace(-1, 1, 64, dtype=np.float32)[None, :, None] * direction_R
    return weights

  both = [dossier(noise(seed), noise(seed + 5), sorted_sketch(seed)) for seed in (1, 2)]
  report = verdict.compare(*both)
  assert report['verdict'] != 'related'
  assert report['witnesses'][0]['obstacle']
  assert 'The unit order is no evidence here' in ' '.join(report['doubts'])


def test_a_shared_embedding_is_named():
  def subject(seed):
    params = init_params(ALIGNED_GPT2, seed, embedding_seed=9)
    return methods.Subject(ALIGNED_GPT2, params, PROBE)

  report = methods.judge(subject(1), subject(2))
  assert report['verdict'] != 'related'
  assert {'tensor': 'embedding', 'how': 'equal', 'correlation': 1.0, 'equal_share': 1.0} in [
      each | {'correlation': round(each['correlation'], 6)} for each in report['shared_tensors']]
  assert 'one public embedding' in report['doubts'][0]


@pytest.mark.parametrize('config, change', [
    (ALIGNED, alterations.rotate_channels), (ALIGNED, alterations.flip_channels),
    (ALIGNED, alterations.permute_channels), (ALIGNED_GPT2, alterations.permute_channels),
    (ALIGNED_GPT2, alterations.flip_channels), (ALIGNED, alterations.permute_units),
    (ALIGNED, alterations.permute_heads), (ALIGNED, alterations.mix_values),
])
def test_a_disguise_that_keeps_the_function_does_not_hide_a_descendant(config, change):
  base = methods.Subject(config, trained(config), PROBE)
  noisy = damage.add_noise(config, base.params, jax.random.key(2), 0.3)
  suspect = methods.Subject(*change(*noisy, jax.random.key(3)), PROBE)
  assert methods.judge(base, suspect)['verdict'] == 'related'


def test_what_was_disguised_in_all_ways_is_at_least_doubtful():
  base = methods.Subject(ALIGNED, trained(ALIGNED), PROBE)
  network = base.pair
  for change in (alterations.rotate_channels, alterations.permute_units,
                 alterations.permute_heads, alterations.mix_values):
    network = change(*network, jax.random.key(4))
  report = methods.judge(base, methods.Subject(*network, PROBE))
  assert report['verdict'] == 'inconclusive' and report['embedding_fit'] > 0.99
  assert 'after a change of basis' in ' '.join(report['reasons'])


def test_what_cannot_be_turned_is_not_called_unrelated():
  """With 70 tokens for 32 channels a rotation cannot be told from chance."""
  few = dataclasses.replace(GPT2, vocab_size=60)
  both = [methods.Subject(few, init_params(few, seed), PROBE) for seed in (1, 2)]
  report = methods.judge(*both)
  assert report['verdict'] == 'inconclusive' and 'could not be looked for' in report['reasons'][-1]


def test_answers_to_different_probes_are_refused():
  params = init_params(GPT2, 1)
  a, b = (dossiers.of_fingerprint(reading.fingerprint(GPT2, params, Probe('tokens', 40, 6, i)))
          for i in (1, 2))
  with pytest.raises(InputError, match='base read .* seed 1.* suspect .* seed 2'):
    verdict.compare(a, b)
  with pytest.raises(InputError, match='alpha=0.01'):
    verdict.compare(a, a, alpha=0.01)


def test_logits_accuse_nobody():
  params = init_params(GPT2, 1)
  logits = dossiers.of_fingerprint(
      reading.fingerprint(GPT2, params, PROBE, logit_ids=tuple(range(GPT2.width))))
  report = verdict.compare(logits, logits)
  assert report['verdict'] == 'inconclusive'
  assert 'related or not' in report['reasons'][-1]
