"""Networks by name have the verdict of their signatures, from the cache where it has them."""

import dataclasses
import shutil

import numpy as np
import pytest

from bornbiased_jax import configs, lineage, storage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import networks
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.storage.digests import digest
from make_goldens import GOLDENS
from small_networks import DEEP, save_run, trained

TOKENS = Probe('tokens', 1000, 4)


@pytest.fixture(autouse=True, scope='module')
def one_device():
  """The machine without its other devices: a network that is spread over them rounds otherwise."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(networks.jax, 'device_count', lambda: 1)
    yield


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """The names of two networks."""
  folder = tmp_path_factory.mktemp('runs')
  for name, seed in (('a', 1), ('b', 2)):
    save_run(folder / name, 7, DEEP, trained(DEEP, seed))
  return {name: str(folder / name) for name in 'ab'}


def assert_alike(report, other):
  """Up to rounding, which depends on where arrays lie in memory."""
  assert report['verdict'] == other['verdict'] and report['reasons'] == other['reasons']
  for row, expected in zip(report['tests'], other['tests'], strict=True):
    assert (row['test'], row['reason']) == (expected['test'], expected['reason'])
    for name in ('z', 'p_value', 'statistic'):
      assert (row[name] or 0) == pytest.approx(expected[name] or 0, rel=1e-3, abs=1e-4)


def test_a_signature_is_made_once(runs, tmp_path):
  made = lineage.signature(runs['a'], TOKENS, tmp_path)
  file, = tmp_path.iterdir()
  before = file.stat().st_mtime_ns
  again = lineage.signature(runs['a'] + '@7', TOKENS, tmp_path)
  np.testing.assert_array_equal(again.states.hidden_ND, made.states.hidden_ND)
  assert file.stat().st_mtime_ns == before and again.about['name'].endswith('@7')
  assert again.digest == made.about['digest'] == digest(trained(DEEP, 1))
  # Other sequences have a file of their own, of which there are no verdicts.
  states = lineage.states(runs['a'], TOKENS, tmp_path)
  other, = {*tmp_path.iterdir()} - {file}
  assert states.probe['kind'] == 'tokens' and lineage.look_up(str(file)).digest == made.digest
  np.testing.assert_array_equal(
      lineage.states(runs['a'], TOKENS, tmp_path).hidden_ND, states.hidden_ND)
  with pytest.raises(InputError, match=f'{other} has hidden states for other sequences'):
    lineage.look_up(str(other))
  for other in ({'seed': 3}, {'num_ids': 9}):
    probe = dataclasses.replace(TOKENS, **other)
    found = lineage.signature(runs['a'], probe, tmp_path / 'others').states.probe
    assert found.items() >= other.items()


def test_features_are_those_that_weights_have_now(runs, tmp_path):
  """The cache saves forward passes; a layout that was mended since is read anew."""
  made = lineage.signature(runs['a'], TOKENS, tmp_path)
  file, = tmp_path.iterdir()
  old = {name: -x for name, x in made.features.arrays.items()}
  dataclasses.replace(made, features=Features(made.config, old)).save(file)
  found = lineage.signature(runs['a'], TOKENS, tmp_path).features
  np.testing.assert_array_equal(found.arrays['up'], made.features.arrays['up'])


def test_the_cache_tells_settings_apart_that_no_parameter_shows(tmp_path):
  networks_of_one = [(dataclasses.replace(DEEP, rope_theta=theta), trained(DEEP, 1))
                     for theta in (10_000.0, 10.0)]
  states = [lineage.signature(each, TOKENS, tmp_path).states for each in networks_of_one]
  assert states[1].config.rope_theta == 10.0 and len(list(tmp_path.iterdir())) == 2
  assert np.abs(states[0].hidden_ND - states[1].hidden_ND).max() > 1e-3


def test_weights_that_cannot_be_read_are_refused_before_a_model_is_computed(tmp_path):
  shutil.copytree(GOLDENS / 'gpt2', tmp_path / 'gpt2')
  weights = tmp_path / 'gpt2' / 'model.safetensors'
  weights.rename(weights.with_name('pytorch_model.bin'))
  with pytest.raises(InputError, match="'pytorch_model.bin' is a pickle"):
    lineage.look_up(str(tmp_path / 'gpt2'))


@pytest.mark.parametrize('damage', [
    lambda content: content[:-100],
    lambda content: content.replace(b'\\"width\\": 32', b'\\"width\\": 16')],
    ids=['cut', 'of another width'])
@pytest.mark.parametrize('read', [
    lambda *given: lineage.signature(*given).states, lineage.states], ids=['signature', 'states'])
def test_a_damaged_file_of_the_cache_is_made_anew(runs, tmp_path, damage, read):
  made = read(runs['a'], TOKENS, tmp_path)
  file, = tmp_path.iterdir()
  content = file.read_bytes()
  file.write_bytes(damage(content))
  assert file.read_bytes() != content
  mended = read(runs['a'], TOKENS, tmp_path)
  np.testing.assert_array_equal(mended.hidden_ND, made.hidden_ND)
  assert list(tmp_path.iterdir()) == [file] and len(file.read_bytes()) == len(content)


def test_a_call_that_was_stopped_goes_on(runs, tmp_path):
  def stop(_):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    lineage.signature(runs['a'], TOKENS, tmp_path, on_batch=stop)
  parts, = tmp_path.iterdir()
  kept, = parts.iterdir()
  part = np.load(kept)
  np.save(kept, part + 1)  # So that it shows whether it was read.
  made, whole = (lineage.signature(runs['a'], TOKENS, *cache) for cache in ((tmp_path,), ()))
  added_N = np.arange(1000) < part.shape[-2]
  np.testing.assert_allclose(made.states.hidden_ND, whole.states.hidden_ND + added_N[:, None],
                             atol=1e-5)
  assert [path.suffix for path in tmp_path.iterdir()] == ['.safetensors']


def test_verdicts_of_networks_by_name(runs, tmp_path):
  a, b = runs.values()
  report = lineage.compare_networks(a, a, TOKENS, tmp_path)
  assert report['verdict'] == 'related' and report['identical'] and report['base']['name'] == a
  report = lineage.compare_networks(a, b, TOKENS, tmp_path)
  assert report['verdict'] == 'unrelated' and report['suspect']['name'] == b
  in_memory = lineage.judge(*(lineage.Subject(DEEP, trained(DEEP, i), TOKENS) for i in (1, 2)))
  assert_alike(in_memory, report)
  given = lineage.compare_networks((DEEP, trained(DEEP, 1)), (DEEP, trained(DEEP, 2)), TOKENS)
  assert_alike(given, report)
  with pytest.raises(InputError, match='no such model'):
    lineage.compare_networks(a, 'nothing', TOKENS)


def test_a_saved_signature_has_the_verdict_of_its_network(runs, tmp_path):
  a, b = runs.values()
  path = str(tmp_path / 'a.safetensors')
  lineage.signature(a, TOKENS).save(path)
  named = lineage.compare_networks(a, b, TOKENS)
  # The probe is that of the file, whatever is asked for.
  saved = lineage.compare_networks(path, b, Probe('tokens', 50, 2, seed=3))
  assert saved['probe'] == named['probe'] and saved['base'] == named['base']
  assert_alike(saved, named)
  assert lineage.compare_networks(path, a, TOKENS)['identical']
  with pytest.raises(InputError, match='reads random tokens'):
    lineage.signature(a, Probe('gaussian', 40, 6))


def test_the_probe_that_several_networks_can_read():
  small, large = (storage.open(f'{configs.name_of(dataclasses.replace(DEEP, vocab_size=size))}:1')
                  for size in (DEEP.vocab_size, 90))
  assert networks.common_probe(TOKENS, [small, small]) == Probe('pairs', 1000, 4)
  assert networks.common_probe(TOKENS, [small, large]) == Probe('pairs', 1000, 4, num_ids=70)
  given = dataclasses.replace(TOKENS, num_ids=30)
  assert networks.common_probe(given, [small, large]).num_ids == 30
  saved = signature.of_network(DEEP, trained(DEEP, 1), dataclasses.replace(given, seed=5))
  assert networks.common_probe(TOKENS, [large, saved]) == Probe('pairs', 1000, 4, 5, 30)


def test_what_does_not_fit_into_memory_is_read_layer_by_layer(monkeypatch, tmp_path):
  name = str(GOLDENS / 'llama_tied_sharded')
  whole = lineage.signature(name, TOKENS)
  assert whole.about == {'name': name, 'digest': whole.digest}
  monkeypatch.setattr(networks, 'free_memory', lambda: 1000)
  streamed = lineage.signature(name, TOKENS, tmp_path)
  assert streamed.about == whole.about | {'read': 'layer by layer'}
  np.testing.assert_allclose(streamed.states.hidden_ND, whole.states.hidden_ND, atol=1e-5)
  # The file in the cache is the same, whoever made it.
  file, = tmp_path.iterdir()
  again = lineage.signature(name, TOKENS, tmp_path, stream='never')
  assert again.about == whole.about and [file] == list(tmp_path.iterdir())
  with pytest.raises(InputError, match='is not one of auto, always, never'):
    lineage.signature(name, TOKENS, stream='sometimes')
  report = lineage.compare_networks(name, name, TOKENS, tmp_path)
  assert report['identical'] and report['base']['read'] == 'layer by layer'
