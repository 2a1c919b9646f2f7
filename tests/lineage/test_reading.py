"""A fingerprint holds what a network answers, on one device or several."""


import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprints, reading, witnesses
from bornbiased_jax.models import sharding, transformer
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import Transformer
import small_networks
from small_networks import GEMMA2

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
TOKENS, GAUSSIAN = Probe('tokens', 40, 6), Probe('gaussian', 40, 6)


@pytest.fixture(scope='module')
def params():
  return init_params(CONFIG, 5)


@pytest.mark.parametrize('probe', [TOKENS, GAUSSIAN], ids=['tokens', 'gaussian'])
def test_a_fingerprint_is_the_last_answer_to_each_sequence(probe, params):
  made = reading.fingerprint(CONFIG, params, probe, batch_size=16)
  inputs = probe.inputs(CONFIG, jnp.arange(40))
  hidden = transformer.read(CONFIG, params, inputs, ('hidden',))['hidden'][:, -1]
  np.testing.assert_allclose(made.hidden_ND, hidden, atol=2e-5)
  expected = inputs[:, -1] if probe.kind == 'gaussian' else params['embedding'][inputs[:, -1]]
  np.testing.assert_allclose(made.input_ND, expected, atol=1e-8)
  seeds = reading.of_seeds(CONFIG, [4, 5], probe)
  np.testing.assert_allclose(seeds[1].hidden_ND, made.hidden_ND, atol=2e-5)
  # They come from another program, which may round the same vectors differently.
  assert witnesses.input_is_shared(seeds[1], made)
  assert witnesses.input_is_shared(seeds[0], made) == (probe.kind == 'gaussian')
  assert np.abs(seeds[0].hidden_ND - made.hidden_ND).max() > 0.1


@pytest.mark.parametrize('shape', [(4, 1, 1), (1, 2, 2)])
def test_devices_share_a_fingerprint(params, shape):
  """Their number need not divide a batch, nor the size of a batch the number of sequences."""
  mesh = sharding.make_mesh(*shape)
  spread = jax.device_put(params, sharding.shardings(mesh, params))
  made = reading.fingerprint(CONFIG, spread, Probe('tokens', 38, 6), batch_size=9)
  alone = reading.fingerprint(CONFIG, params, Probe('tokens', 38, 6))
  np.testing.assert_allclose(made.hidden_ND, alone.hidden_ND, atol=2e-5)
  np.testing.assert_array_equal(made.input_ND, alone.input_ND)
  assert made.metadata == alone.metadata


def test_devices_gather_parameters_but_never_reduce_activations(params):
  """Otherwise activations of all sequences would pass between devices in every layer."""
  mesh, probe = sharding.make_mesh(1, 4), Probe('tokens', 64, 6)
  index_B = jax.ShapeDtypeStruct((64,), 'int32', sharding=NamedSharding(mesh, sharding.BATCH))
  program = reading.program(reading.exact(CONFIG), probe, mesh=mesh)
  text = program.lower(sharding.abstract(mesh, params), index_B).compile().as_text()
  assert 'all-gather(' in text and 'all-reduce(' not in text


def test_each_device_has_as_many_sequences_as_one_would_alone():
  config, probe = configs.get('llama2_7b'), Probe('tokens', 2000, 1024)
  size = lambda mesh, *given: reading.spread_batch_size(config, probe, mesh, *given,
                                                             backend='tpu')
  # 32 heads of 4 MB of weights each, twice in memory at least.
  assert size(None) == 16
  assert size(sharding.make_mesh(1, 4)) == size(sharding.make_mesh(2, 2)) == 64
  assert size(sharding.make_mesh(2, 1, 2)) == 32
  assert size(sharding.make_mesh(1, 4), 9) == 12
  assert size(sharding.make_mesh(1, 4), 10_000) == 2000


def test_logits_of_chosen_ids(params):
  made = reading.fingerprint(CONFIG, params, TOKENS, logit_ids=(7, 3, 49))
  tokens = TOKENS.inputs(CONFIG, jnp.arange(40))
  logits = Transformer(CONFIG).apply({'params': params}, tokens)[:, -1]
  np.testing.assert_allclose(made.hidden_ND, logits[:, jnp.array([7, 3, 49])], atol=2e-5)
  assert made.metadata['probe']['hash'] != fingerprints.probe_settings(TOKENS, CONFIG)['hash']
  with pytest.raises(InputError, match='from 0 to 49'):
    reading.fingerprint(CONFIG, params, TOKENS, logit_ids=(50,))


def test_a_fingerprint_goes_on_where_it_was(params, tmp_path):
  class Stop(Exception):
    pass

  def stop(_):
    raise Stop

  parts = tmp_path / 'parts'
  with pytest.raises(Stop):
    reading.fingerprint(CONFIG, params, TOKENS, batch_size=16, parts=parts, on_batch=stop)
  # The answers of the first batch are taken from its file; those of a damaged file are made anew.
  first, = parts.iterdir()
  np.save(first, np.load(first) + 1)
  (parts / '16_16.npy').write_bytes(first.read_bytes()[:-100])
  made = reading.fingerprint(CONFIG, params, TOKENS, batch_size=16, parts=parts)
  whole = reading.fingerprint(CONFIG, params, TOKENS)
  added_N = np.arange(40) < 16
  np.testing.assert_allclose(made.hidden_ND, whole.hidden_ND + added_N[:, None], atol=2e-5)


def test_random_networks_are_read_several_at_once(monkeypatch):
  alone = reading.of_seeds(CONFIG, range(5), TOKENS)
  at_most_two = lambda bytes_of_one, num_seeds: min(2, bytes_of_one())
  monkeypatch.setattr(reading, 'networks_at_once', at_most_two)
  for one, other in zip(alone, reading.of_seeds(CONFIG, range(5), TOKENS), strict=True):
    np.testing.assert_allclose(one.hidden_ND, other.hidden_ND, atol=2e-5)
    assert one.metadata == other.metadata


def test_a_shared_embedding_is_a_shared_input():
  a, b = reading.of_seeds(CONFIG, [1, 2], TOKENS, embedding_seed=9)
  np.testing.assert_array_equal(a.input_ND, b.input_ND)
  assert np.abs(a.hidden_ND - b.hidden_ND).max() > 0.1


def test_answers_that_are_not_finite_are_refused(params):
  broken = params | {'embedding': params['embedding'] * np.inf}
  with pytest.raises(InputError, match='not all finite'):
    reading.fingerprint(CONFIG, broken, TOKENS)


def test_random_vectors_are_as_large_as_what_enters_the_residual_stream():
  params, ids = init_params(GEMMA2, 1), small_networks.tokens(200, 3)
  entering = np.asarray(small_networks.read(GEMMA2, params, ids, 'input_last')['input_last'])
  size = reading.sized(GEMMA2, params).embedding_std
  assert 2**-0.6 < size / np.sqrt(np.mean(entering**2)) < 2**0.6


def test_the_size_of_an_embedding_is_a_finite_number(params):
  size = np.float64(params['embedding']).std()
  assert reading.sized(CONFIG, params).embedding_std == 2.0**round(np.log2(size))
  for number in (np.inf, np.nan):
    with pytest.raises(InputError, match='numbers that are not finite'):
      reading.sized(CONFIG, params | {'embedding': params['embedding'].at[3, 4].set(number)})
  # Its square exceeds float32.
  large = params | {'embedding': params['embedding'].at[3, 4].set(2.0**70)}
  assert reading.sized(CONFIG, large).embedding_std == 2.0**round(70 - np.log2(1600) / 2)
