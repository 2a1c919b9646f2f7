"""A verdict follows from its tests, by every path."""

import dataclasses
import functools
import json

import jax
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import levels, verdict
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.transforms import lossy, preserving
from bornbiased_jax.models.initialization import init_params
from small_networks import DEEP

PROBE = Probe('tokens', 1000, 4)


@functools.cache
def taken(seed, count=1000):
  return signature.of_network(DEEP, init_params(DEEP, seed), dataclasses.replace(
      PROBE, num_sequences=count))


def changed(*changes):
  network = DEEP, init_params(DEEP, 1)
  for change in changes:
    network = change(*network, jax.random.key(7))
  return signature.of_network(*network, PROBE)


def test_unrelated_networks():
  report = verdict.compare(taken(1), taken(2))
  assert report['verdict'] == 'unrelated' and report['schema'] == 3
  assert json.loads(json.dumps(report)) == report
  assert all(row['detectable'] <= levels.DETECTABLE for row in report['tests'] if row['decides'])


@pytest.mark.parametrize('change', [
    preserving.rotate_channels, preserving.permute_channels, preserving.mix_values,
    preserving.permute_heads, functools.partial(lossy.add_noise, strength=0.5),
    functools.partial(lossy.quantize, strength=4),
    functools.partial(lossy.remove_units, strength=0.25)])
def test_descendants(change):
  report = verdict.compare(taken(1), changed(change))
  assert report['verdict'] == 'related' and 1e-12 <= report['p_value'] <= levels.ALPHA


def test_value_order_alone_is_inconclusive():
  report = verdict.compare(taken(1), changed(preserving.permute_units))
  assert report['verdict'] == 'inconclusive' and 'channel by channel' in ' '.join(report['reasons'])


def test_a_copy_of_which_every_order_was_changed_is_inconclusive():
  report = verdict.compare(taken(1), changed(
      preserving.permute_units, preserving.mix_values, preserving.rotate_channels))
  assert report['verdict'] == 'inconclusive'
  assert 'disguise' in ' '.join(report['reasons'])


def test_too_few_sequences_are_inconclusive():
  report = verdict.compare(taken(1, 200), taken(2, 200))
  assert report['verdict'] == 'inconclusive' and '200 sequences' in ' '.join(report['reasons'])


def test_other_probes_leave_hidden_states_out():
  report = verdict.compare(taken(1), taken(2, 1200))
  assert report['verdict'] == 'inconclusive' and 'hidden states' in ' '.join(report['reasons'])


def test_one_digest_is_one_network_unless_it_is_claimed():
  assert verdict.compare(taken(1), taken(1))['identical']
  forged = dataclasses.replace(taken(2), tensors={
      name: dataclasses.replace(each, digest=taken(1).tensors[name].digest)
      for name, each in taken(2).tensors.items()})
  report = verdict.compare(taken(1), forged)
  assert not report['identical'] and report['verdict'] == 'unrelated'


def test_alpha_may_not_be_larger():
  with pytest.raises(InputError, match='alpha'):
    verdict.compare(taken(1), taken(2), alpha=0.01)
