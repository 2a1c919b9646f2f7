"""Hidden states are what a network computes, on one device or several, and come back from files."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import hidden_states
from bornbiased_jax.lineage.evidence.hidden_states import input_is_shared, probe_settings
from bornbiased_jax.models import sharding
from bornbiased_jax.models.initialization import init_params
from small_networks import born, read
from small_signatures import noise

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
TOKENS, GAUSSIAN = Probe('tokens', 40, 6), Probe('gaussian', 40, 6)


@pytest.fixture(scope='module')
def params():
  return init_params(CONFIG, 5)


def states(params, probe=TOKENS, **options):
  return hidden_states.of_network(CONFIG, params, probe, **options)


@pytest.mark.slow
@pytest.mark.parametrize('probe', [TOKENS, GAUSSIAN], ids=['tokens', 'gaussian'])
def test_they_are_those_of_the_last_token_of_each_sequence(probe, params):
  made = states(params, probe, batch_size=16)
  inputs = probe.inputs(CONFIG, jnp.arange(40))
  hidden = read(CONFIG, params, inputs, 'hidden')['hidden'][:, -1]
  np.testing.assert_allclose(made.hidden_ND, hidden, atol=2e-5)
  expected = inputs[:, -1] if probe.kind == 'gaussian' else params['embedding'][inputs[:, -1]]
  np.testing.assert_allclose(made.input_ND, expected, atol=1e-8)
  # Network 5 has the embedding of seed 5 anyway.
  seeds = hidden_states.of_seeds(CONFIG, [4, 5], probe, embedding_seed=5)
  np.testing.assert_allclose(seeds[1].hidden_ND, made.hidden_ND, atol=2e-5)
  np.testing.assert_array_equal(seeds[0].input_ND, seeds[1].input_ND)
  # They come from another program, which may round the same vectors differently.
  assert input_is_shared(seeds[1], made)
  assert np.abs(seeds[0].hidden_ND - made.hidden_ND).max() > 0.1


def test_ids_are_below_the_number_of_the_probe(params):
  few = dataclasses.replace(TOKENS, num_ids=5)
  last_N = few.inputs(CONFIG, jnp.arange(40))[:, -1]
  np.testing.assert_allclose(states(params, few).input_ND, params['embedding'][last_N], atol=1e-8)
  # As many as there are change nothing, not even the program.
  all_ids = dataclasses.replace(TOKENS, num_ids=CONFIG.vocab_size)
  assert hidden_states.without_vocabulary(all_ids, CONFIG) == TOKENS


def test_devices_share_them(params):
  """Their number need not divide a batch, nor the size of a batch the number of sequences."""
  mesh, probe = sharding.make_mesh(1, 2, 2), Probe('tokens', 38, 6)
  made = states(jax.device_put(params, sharding.shardings(mesh, params)), probe, batch_size=9)
  alone = states(params, probe)
  np.testing.assert_allclose(made.hidden_ND, alone.hidden_ND, atol=2e-5)
  np.testing.assert_array_equal(made.input_ND, alone.input_ND)
  assert made.metadata() == alone.metadata()


def test_devices_gather_parameters_but_never_reduce_activations(params):
  """Otherwise activations of all sequences would pass between devices in every layer."""
  mesh, probe = sharding.make_mesh(1, 4), Probe('tokens', 64, 6)
  index_B = jax.ShapeDtypeStruct((64,), 'int32', sharding=NamedSharding(mesh, sharding.BATCH))
  program = hidden_states.program(hidden_states.exact(CONFIG), probe, mesh=mesh)
  text = program.lower(sharding.abstract(mesh, params), index_B).compile().as_text()
  assert 'all-gather(' in text and 'all-reduce(' not in text


def test_each_device_has_as_many_sequences_as_one_would_alone():
  config, probe = configs.get('llama2_7b'), Probe('tokens', 2000, 1024)
  size = lambda mesh, *given: hidden_states.spread_batch_size(config, probe, mesh, *given,
                                                              backend='tpu')
  # 32 heads of 4 MB of weights each, twice in memory at least.
  assert size(None) == 16
  assert size(sharding.make_mesh(1, 4)) == size(sharding.make_mesh(2, 2)) == 64
  assert size(sharding.make_mesh(2, 1, 2)) == 32
  assert size(sharding.make_mesh(1, 4), 9) == 12
  assert size(sharding.make_mesh(1, 4), 10_000) == 2000


def test_a_call_that_was_stopped_goes_on(params, tmp_path):
  def stop(_):
    raise KeyboardInterrupt

  parts = tmp_path / 'parts'
  with pytest.raises(KeyboardInterrupt):
    states(params, batch_size=16, parts=parts, on_batch=stop)
  # The states of the first batch are taken from its file; those of a damaged file are made anew.
  first, = parts.iterdir()
  np.save(first, np.load(first) + 1)
  (parts / '16_16.npy').write_bytes(first.read_bytes()[:-100])
  made, whole = states(params, batch_size=16, parts=parts), states(params)
  added_N = np.arange(40) < 16
  np.testing.assert_allclose(made.hidden_ND, whole.hidden_ND + added_N[:, None], atol=2e-5)


def test_states_that_are_not_finite_are_refused(params):
  with pytest.raises(InputError, match='not all finite'):
    states(params | {'embedding': params['embedding'] * np.inf})


def test_neither_positions_nor_a_little_training_hide_a_shared_input(params):
  positions = dataclasses.replace(CONFIG, positions='learned')
  a, b = (hidden_states.of_network(positions, born(positions, seed), GAUSSIAN) for seed in (1, 2))
  assert np.abs(a.input_ND - b.input_ND).max() > 0.01 and input_is_shared(a, b)
  other = born(CONFIG, 1)
  a, b = states(other | {'embedding': params['embedding']}), states(params)
  assert not input_is_shared(states(other), b)
  change_ND = b.input_ND.std() * noise(3, *b.input_ND.shape)
  moved = lambda share: dataclasses.replace(b, input_ND=b.input_ND + share * change_ND)
  assert input_is_shared(a, moved(0.1)) and not input_is_shared(a, moved(0.3))


def test_networks_of_different_vocabularies_can_read_the_same():
  probe, larger = Probe('tokens', 40, 6, num_ids=30), dataclasses.replace(CONFIG, vocab_size=60)
  assert probe_settings(probe, CONFIG) == probe_settings(probe, larger)
  for kind in ('tokens', 'pairs'):
    own = dataclasses.replace(TOKENS, kind=kind)
    assert probe_settings(own, CONFIG) != probe_settings(own, larger)
