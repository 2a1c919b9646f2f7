"""A verdict follows from its tests, by every path."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import thresholds, verdict
from bornbiased_jax.lineage.comparison.every_test import DECIDING, TESTS
from bornbiased_jax.lineage.comparison.result import TestResult, does_not_apply
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.layouts import UNITS, VALUES
from experiments.transforms import lossy, preserving
from small_networks import DEEP, DEEP_GPT2, altered, trained
from small_signatures import PROBE, of_seed, random_signature, unit

random = functools.cache(functools.partial(random_signature, DEEP))


def with_features(suspect, **arrays):
  return dataclasses.replace(suspect, features=Features(
      suspect.config, suspect.features.arrays | arrays))


def of_base(names, share=1.0):
  """Features of the base with the same names, or a share of them mixed into those of another."""
  mix = lambda own, base: unit(own + share / (1 - share) * base) if share < 1 else base
  return {name: mix(random(3).features.arrays[name], random(1).features.arrays[name])
          for name in names}


def of_base_in_every_second_layer(names):
  """Learned likeness need not be one basis in all layers."""
  own, base = (random(seed).features.arrays for seed in (3, 1))
  is_even = lambda x: (np.arange(len(x)) % 2 == 0).reshape(-1, *[1] * (x.ndim - 1))
  return {name: np.where(is_even(own[name]), base[name], own[name]) for name in names}


def of_base_in_one_layer(names):
  own, base = (random(seed).features.arrays for seed in (3, 1))
  return {name: np.concatenate((base[name][:1], own[name][1:])) for name in names}


def with_states(hidden_ND):
  return dataclasses.replace(random(3), states=dataclasses.replace(
      random(3).states, hidden_ND=hidden_ND))


def near_identity(seed):
  """With a pattern in all units, which unrelated networks may have."""
  pattern = 0.6 * np.tile(np.eye(32, dtype=np.float32), (2, 1))
  return with_features(random(seed), **{name: unit(random(seed).features.arrays[name] + pattern)
                                        for name in UNITS})


def cut(seed, units):
  """A network of fewer units."""
  config = dataclasses.replace(DEEP, mlp_width=units)
  own = random(seed).features.arrays
  found = Features(config, {name: x[:, :units] if name in UNITS else x for name, x in own.items()})
  states = dataclasses.replace(random(seed).states, config=config)
  return dataclasses.replace(random(seed), states=states, features=found)


def narrow(seed):
  return random_signature(dataclasses.replace(DEEP, width=24, head_size=8), seed)


PATHS = {
    'nothing in common': (random(3), 'unrelated', 'looks unrelated too'),
    'units and values': (with_features(random(3), **of_base(UNITS + VALUES)), 'related',
                         'the same code draws from one seed'),
    'units alone': (with_features(random(3), **of_base(UNITS)), 'related', 'share an ancestor'),
    'a small part of units': (with_features(random(3), **of_base(UNITS, 0.2)), 'related',
                              'such as a public adapter'),
    'values alone': (with_features(random(3), **of_base(VALUES)), 'inconclusive',
                     'channel by channel, agrees in this way too. Descent is not shown'),
    'values alone, and units could not be': (
        with_features(cut(3, 48), **of_base(VALUES)), 'related', 'value order'),
    'values alone and hardly, and units could not be': (
        with_features(cut(3, 48), **of_base(VALUES, 0.25)), 'inconclusive', 'Descent is not shown'),
    'values alone in some layers, and units could not be': (
        with_features(cut(3, 48), **of_base_in_every_second_layer(VALUES)), 'inconclusive',
        'Descent is not shown'),
    'one layer alone': (with_features(random(3), **of_base_in_one_layer(UNITS + VALUES)),
                        'inconclusive', 'They agree in one layer, and too little in the others'),
    'weakly': (with_features(random(3), **of_base(UNITS, 0.11)), 'inconclusive',
               'needs a p-value of 0.0001'),
    'hidden states channel by channel': (
        with_states(random(3).states.hidden_ND + random(1).states.hidden_ND / 3), 'inconclusive',
        'share an embedding or a teacher'),
    'hidden states of other signs': (with_states(-random(1).states.hidden_ND), 'inconclusive',
                                     'They may be copies'),
    'an excluded test': (near_identity(3), 'inconclusive', 'is no evidence here'),
    'other MLP widths': (cut(3, 48), 'unrelated', 'Their MLPs differ in width'),
    'too few units': (cut(3, 4), 'inconclusive', 'may have been missed, where a copy has 1'),
    'units that are all alike': (
        with_features(random(3), **{name: 0 * random(3).features.arrays[name] for name in UNITS}),
        'inconclusive', 'A mean likeness of MLP units may have been missed'),
    'units that are all one vector': (
        with_features(random(3), **{name: unit(np.ones_like(random(3).features.arrays[name]))
                                    for name in UNITS}),
        'inconclusive', 'A mean likeness of MLP units may have been missed'),
    'other widths': (narrow(3), 'unrelated', 'would have been found'),
}


@pytest.mark.parametrize('path', PATHS)
def test_every_path_to_a_verdict(path):
  suspect, expected, reason = PATHS[path]
  base = near_identity(1) if path == 'an excluded test' else random(1)
  report = verdict.compare(base, suspect)
  assert report['verdict'] == expected, report
  assert reason in ' '.join(report['reasons'])
  assert json.loads(json.dumps(report, allow_nan=False)) == report
  assert 1e-12 <= report['p_value'] <= 1
  can_be_chance = expected != 'related' and not path.startswith(('values alone', 'one layer'))
  assert (report['p_value'] > thresholds.ALPHA) == can_be_chance
  for row in report['tests']:
    assert (row['reason'] is None) == (row['p_value'] is not None or row['level'] is not None)
    assert not row['detectable'] or row['detectable'] > row['bound']


@pytest.mark.parametrize('num_ids, expected', [(31, 'inconclusive'), (32, 'unrelated')])
def test_sequences_of_few_token_ids_clear_nobody(num_ids, expected):
  def read_few(signature):
    probe = signature.states.probe | {'num_ids': num_ids}
    return dataclasses.replace(signature, states=dataclasses.replace(signature.states, probe=probe))

  report = verdict.compare(read_few(random(1)), read_few(random(3)))
  assert report['verdict'] == expected
  assert ('31 token ids are too few' in ' '.join(report['reasons'])) == (num_ids == 31)


def test_the_p_value_is_that_of_all_deciding_tests():
  report = verdict.compare(random(1), with_features(random(3), **of_base(UNITS, 0.12)))
  p_values = [row['p_value'] for row in report['tests'] if row['decides'] and row['p_value']]
  assert len(p_values) == 4 and report['p_value'] == pytest.approx(4 * min(p_values))


@functools.cache
def noisy(config):
  return lossy.add_noise(config, trained(config, 1), jax.random.key(2), 0.3)


@pytest.mark.parametrize('config, change', [
    (DEEP, preserving.rotate_channels), (DEEP, preserving.mix_values),
    (DEEP, preserving.flip_channels), (DEEP, preserving.permute_heads),
    (DEEP, functools.partial(lossy.remove_units, strength=0.25)),
    (DEEP_GPT2, preserving.permute_channels)])
def test_descendants_are_related(config, change):
  changed = altered(change, *noisy(config), jax.random.key(7))
  suspect = signature.of_network(*changed, PROBE)
  assert verdict.compare(of_seed(config, 1), suspect)['verdict'] == 'related'


@pytest.mark.parametrize('kept', [('query', 'key'), ('value',), ()])
def test_networks_with_an_equal_matrix_are_never_unrelated(kept):
  own, other = (trained(DEEP, seed) for seed in (1, 2))
  other = other | {'blocks': other['blocks'] | {name: own['blocks'][name] for name in kept}}
  suspect = signature.of_network(DEEP, other, PROBE)
  reports = [verdict.compare(*pair) for pair in (
      (of_seed(DEEP, 1), suspect), (suspect, of_seed(DEEP, 1)))]
  assert all((report['verdict'] != 'unrelated') == bool(kept) for report in reports)
  if kept == ('query', 'key'):
    assert all(f'blocks/{name}/kernel of layers 0, 1, 2, 3' in reports[0]['reasons'][0]
               for name in kept)


def test_what_is_missing_is_said():
  few = dataclasses.replace(PROBE, num_sequences=200)
  report = verdict.compare(*(random_signature(DEEP, seed, few) for seed in (1, 2)))
  assert report['verdict'] == 'inconclusive' and '200 sequences' in ' '.join(report['reasons'])
  report = verdict.compare(random(1), random_signature(DEEP, 2, few))
  assert report['verdict'] == 'inconclusive'
  assert 'No test of hidden states applies: they read other' in ' '.join(report['reasons'])
  one = dataclasses.replace(DEEP, num_layers=1)
  report = verdict.compare(*(random_signature(one, seed) for seed in (1, 2)))
  assert report['verdict'] == 'inconclusive' and report['p_value'] is None
  copy = dataclasses.replace(random_signature(one, 1), tensors={})
  for reasons in (report['reasons'], verdict.compare(random_signature(one, 1), copy)['reasons']):
    for part in ('MLP units', 'value channels'):
      assert f'No test of {part} applies: one of the models has only one layer' in ' '.join(reasons)
  with pytest.raises(InputError, match='alpha=0.001 is not between 0 and 0.0001'):
    verdict.compare(random(1), random(3), alpha=0.001)
  with pytest.raises(InputError, match='str is not a Signature'):
    verdict.compare(random(1), 'tiny_gpt2:1')


def test_one_digest_is_one_network_unless_it_is_claimed():
  report = verdict.compare(random(1), random(1))
  assert report['identical'] and 'both hold the same numbers' in report['reasons'][0]
  claimed = {name: dataclasses.replace(each, digest=random(1).tensors[name].digest)
             for name, each in random(3).tensors.items()}
  report = verdict.compare(random(1), dataclasses.replace(random(3), tensors=claimed))
  assert not report['identical'] and report['verdict'] == 'unrelated'


@pytest.mark.parametrize('num_layers, share, expected', [
    (2, 0.25, 'inconclusive'), (2, 0.6, 'related'), (3, 0.25, 'related')])
def test_units_of_two_layers_alone_must_be_as_alike_as_copies(num_layers, share, expected):
  """Two layers do not tell whether each is near a public matrix of its own."""
  config = dataclasses.replace(DEEP, num_layers=num_layers)
  base, suspect = (random_signature(config, seed) for seed in (1, 3))
  mixed = {name: unit(suspect.features.arrays[name] + share / (1 - share)
                      * base.features.arrays[name]) for name in UNITS}
  report = verdict.compare(base, with_features(suspect, **mixed))
  assert report['verdict'] == expected
  assert (expected == 'related') != ('Two layers are too few' in ' '.join(report['reasons']))


def test_one_model_of_two_layers_is_enough_for_doubt():
  """Where only units agree, and less than copies do, whichever model it is."""
  two = random_signature(dataclasses.replace(DEEP, num_layers=2), 1)
  of_units = TestResult(0.4, std=0.01, z=9.0, log10_p=-8.0, log10_p_of_rest=-8.0)
  nothing = TestResult(0.0, std=0.01, z=0.0, log10_p=-0.3, log10_p_of_rest=-0.3)
  results = {name: of_units if name == 'unit order' else nothing for name in DECIDING}
  results |= {name: does_not_apply('no') for name in TESTS if name not in DECIDING}
  for pair, expected in (((two, random(2)), 'inconclusive'), ((random(2), two), 'inconclusive'),
                         ((random(1), random(2)), 'related')):
    assert verdict.decide(results, *pair, thresholds.ALPHA)[0] == expected
