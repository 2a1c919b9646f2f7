"""Ensembles give what a recomputation in numpy gives, one network after the other."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import chunks, ensemble, preference, similarity
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.statistics import Statistic, combine
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import transformer
from bornbiased_jax.models.initialization import init_params

V, D, N, T = 19, 8, 24, 5
# They are not in order, one comes twice, and their number is no multiple of four.
SEEDS = [9, 3, 2**32 - 1, 0, 3, 7]
PROBE = Probe('tokens', N, T, seed=5)
CONFIG = configs.ModelConfig(num_layers=2, num_heads=2, width=D, mlp_width=12, vocab_size=V,
                             length=T, sublayers='attention_only')
STATISTIC = combine({
    'preference': preference.predictions(V),
    'direction': similarity.inter_sequence('hidden_last'),
    'layers': similarity.inter_sequence('residual_last'),
})


def bag_of_words(reads=None):
  """A network that compiles fast: the tanh of the sum of a sequence's embeddings, unembedded."""

  def read(params, inputs, names):
    if reads is not None:
      reads.append(inputs.shape)
    first = params['embedding'][inputs]
    hidden = jnp.tanh(first.sum(1))
    out = {'hidden_last': hidden, 'logits_last': hidden @ params['embedding'].T,
           'residual_last': jnp.stack((first[:, -1], hidden))}
    return {name: out[name] for name in names}

  draw = lambda seed: {
      'embedding': jnp.sin(jnp.float32(1 + seed % 1000) * jnp.arange(1.0, V * D + 1)).reshape(V, D)}
  return ensemble.Ensemble(CONFIG, draw, read)


def readout(params, sums):
  return {'square': jnp.sum(params['embedding'] ** 2),
          'top': jnp.argmax(sums['preference']['count'])}


def by_hand(draw, read):
  """What `measure` should say of each seed in SEEDS, from the outputs of one network at a time."""
  names = ('logits_last', 'hidden_last', 'residual_last')
  read = jax.jit(read, static_argnums=2)
  inputs = jax.jit(lambda: PROBE.inputs(CONFIG, jnp.arange(N)))()
  for seed in SEEDS:
    params = draw(np.uint32(seed))
    outputs = read(params, inputs, names)
    yield expected_row(seed, params, *(np.asarray(outputs[name], np.float64) for name in names))


def expected_row(seed, params, logits, hidden, residual):
  second, first = np.sort(logits, axis=1)[:, -2:].T
  assert np.min(first - second) > 1e-5, 'rounding decides an argmax'
  count = np.bincount(logits.argmax(1), minlength=V)
  return {
      'seed': seed, 'count': count, 'direction': unit(hidden).mean(0),
      'cosine': gram_cosine(hidden), 'layers': [gram_cosine(layer) for layer in residual],
      'square': np.sum(np.asarray(params['embedding'], np.float64) ** 2), 'top': count.argmax(),
  }


def unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def gram_cosine(x_ND):
  return np.mean((unit(x_ND) @ unit(x_ND).T)[~np.eye(N, dtype=bool)])


def assert_row(row, expected):
  assert row['seed'] == expected['seed']
  count, found = expected['count'], row['preference']
  assert (found['top1_id'], found['top1_count']) == (count.argmax(), count.max())
  assert found['top1_frequency'] == count.max() / N
  assert found['top_counts'] == sorted(count, reverse=True)
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-6)
  close(row['direction']['direction'], expected['direction'])
  close(row['direction']['cosine'], expected['cosine'])
  close(row['layers']['cosine'], expected['layers'])
  np.testing.assert_allclose(row['square'], expected['square'], rtol=1e-6)
  assert row['top'] == expected['top']


@pytest.fixture(scope='module')
def expected():
  network = bag_of_words()
  return list(by_hand(jax.jit(network.draw), network.read))


@pytest.mark.parametrize('chunk_size, batch_size', [
    (1, 7), (None, None),
])
def test_any_chunks_and_batches(expected, chunk_size, batch_size):
  batches = []
  rows = list(ensemble.measure(
      bag_of_words(), STATISTIC, PROBE, SEEDS, readout=readout, chunk_size=chunk_size,
      batch_size=batch_size, on_batch=batches.append))
  assert [row['seed'] for row in rows] == SEEDS
  for row, own in zip(rows, expected, strict=True):
    assert_row(row, own)
  assert sum(batches) == len(SEEDS) * N


def test_networks_read_sequences_of_their_own():
  probe = dataclasses.replace(PROBE, of_each=True)
  network = bag_of_words()
  rows = list(ensemble.measure(network, STATISTIC, probe, SEEDS, readout=readout, chunk_size=4,
                               batch_size=7))

  @jax.jit
  def logits_of(seed):
    inputs = probe.inputs(CONFIG, jnp.arange(N), seed)
    return network.read(network.draw(seed), inputs, ('logits_last',))['logits_last']

  for row in rows:
    logits = logits_of(np.uint32(row['seed']))
    count = np.bincount(np.asarray(logits).argmax(1), minlength=V)
    assert (row['preference']['top1_count'], row['top']) == (count.max(), count.argmax())


@pytest.mark.slow
def test_transformers_that_share_their_embeddings():
  network = ensemble.transformer(CONFIG, embedding_seed=2)
  rows = ensemble.measure(network, STATISTIC, PROBE, SEEDS, readout=readout, chunk_size=8,
                          batch_size=8)

  def draw(seed):
    own, other = init_params(CONFIG, seed), init_params(CONFIG, np.uint32(2))
    return own | {'embedding': other['embedding']}

  def read(params, inputs, names):
    # This computes every position; the ensemble computes the last one alone.
    out = transformer.read(CONFIG, params, inputs, ('logits', 'hidden', 'residual'))
    return {f'{name}_last': leaf[..., -1, :] for name, leaf in out.items()}

  for row, own in zip(rows, by_hand(draw, read), strict=True):
    assert_row(row, own)


@pytest.mark.parametrize('seeds', [
    range(3, 8), np.array([4, 2]), [],
], ids=['range', 'array', 'none'])
def test_seeds_of_any_sequence(seeds):
  rows = list(ensemble.measure(bag_of_words(), preference.predictions(V), PROBE, seeds))
  assert [row['seed'] for row in rows] == list(seeds)


def test_batch_counts():
  batches = []
  measured = ensemble.measure(bag_of_words(), preference.predictions(V), PROBE, SEEDS,
                              chunk_size=4, batch_size=10, on_batch=batches.append)
  assert batches == []
  next(measured)
  assert batches == [40, 40, 16]
  list(measured)
  assert batches == [40, 40, 16, 20, 20, 8]


def test_traces_depend_on_batches_only():
  def traces(num_seeds, batch_size):
    reads = []
    list(ensemble.measure(bag_of_words(reads), preference.predictions(V), PROBE, range(num_seeds),
                          chunk_size=8, batch_size=batch_size))
    return reads

  even = traces(3, 12)
  assert traces(19, 12) == even
  assert traces(19, 10) == [*even[:-1], (10, T), (4, T)]


def test_networks_are_drawn_by_one_program_whatever_they_read():
  draws, network = [], bag_of_words()
  network = network._replace(draw=lambda seed: draws.append(seed) or bag_of_words().draw(seed))
  for length in (T, T - 1):
    probe = dataclasses.replace(PROBE, length=length)
    list(ensemble.measure(network, preference.predictions(V), probe, SEEDS, chunk_size=4))
  assert len(draws) == 1


def test_other_seeds_are_measured_by_the_same_programs():
  assert ensemble.transformer(CONFIG) is ensemble.transformer(CONFIG)
  reads = []
  network, statistic = bag_of_words(reads), preference.predictions(V)
  for seeds in (range(4), range(4, 8)):
    list(ensemble.measure(network, statistic, PROBE, seeds, chunk_size=4, batch_size=12))
  assert reads.count((12, T)) == 1


def test_what_cannot_be_hashed_is_measured_too():
  network, statistic = bag_of_words(), preference.predictions(V)
  others = (network._replace(config=types.SimpleNamespace(**vars(CONFIG))),
            statistic._replace(reads=list(statistic.reads)))
  plain, other = ([row['top_ids'] for row in ensemble.measure(*pair, PROBE, SEEDS)]
                  for pair in ((network, statistic), others))
  assert other == plain


def test_two_chunks_are_never_held(monkeypatch):
  shape, held, shard = (4, V, D), [], chunks.shard

  def record(*args):
    held.append(sum(array.shape == shape for array in jax.live_arrays()))
    return shard(*args)

  monkeypatch.setattr(chunks, 'shard', record)
  at_work = []
  count = lambda _: at_work.append(sum(array.shape == shape for array in jax.live_arrays()))
  list(ensemble.measure(bag_of_words(), preference.predictions(V), PROBE, range(12), chunk_size=4,
                        on_batch=count))
  assert held == [0, 0, 0]
  assert at_work == [1, 1, 1]


def test_too_long_a_probe():
  probe = Probe('tokens', N, T + 1)
  with pytest.raises(InputError, match=f'{T + 1} positions exceed'):
    list(ensemble.measure(ensemble.transformer(CONFIG), STATISTIC, probe, SEEDS))


# Sizes.


@pytest.mark.parametrize('memory, num_seeds, networks_per_device', [
    (1000, 1000, 5), (1000, 10, 3), (1000, 4, 1), (1000, 1, 1), (1199, 1000, 5), (1200, 1000, 6),
    (10, 1000, 1),
])
def test_default_chunk_size(monkeypatch, memory, num_seeds, networks_per_device):
  device = types.SimpleNamespace(memory_stats=lambda: {'bytes_limit': memory})
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax, 'local_devices', lambda: [device])
  monkeypatch.setattr(jax, 'device_count', lambda: 4)
  monkeypatch.setattr(chunks, 'network_bytes', lambda *args: 100)
  size = chunks.default_chunk_size(bag_of_words(), STATISTIC, PROBE, num_seeds, N)
  assert size == 4 * networks_per_device


def test_network_bytes_grow_with_the_batch():
  few, many = (chunks.network_bytes(bag_of_words(), STATISTIC, PROBE, batch_size)
               for batch_size in (1, 1001))
  assert few > 4 * V * D
  assert many - few > 4 * 1000 * (V + D), 'less than logits and hidden states'


@pytest.mark.parametrize('wrong, message', [
    (dict(seeds=[0.5]), 'seed 0.5'), (dict(seeds=[0, -1]), 'seed -1'),
    (dict(seeds=[1, 2**32]), 'seed 4294967296'),
    (dict(seeds=[True]), 'seed True'), (dict(seeds=[0], batch_size=0), 'batch_size=0'),
    (dict(seeds=[0], chunk_size=1.5), 'chunk_size=1.5'),
])
def test_wrong_arguments_are_refused(wrong, message):
  with pytest.raises(InputError, match=message):
    list(ensemble.measure(bag_of_words(), preference.predictions(V), PROBE, **wrong))


def test_networks_that_are_given_are_those_of_their_seeds():
  """They are taken one chunk after the other, and compiled once, as an iterator shows."""
  reads, taken = [], []
  network = bag_of_words(reads)

  def given():
    for seed in SEEDS:
      taken.append(seed)
      yield CONFIG, jax.tree.map(np.asarray, network.draw(np.uint32(seed)))

  family = list(ensemble.measure(network, STATISTIC, PROBE, SEEDS, readout=readout))
  params = [params for _, params in given()]
  bags = network._replace(draw=None)
  taken.clear(), reads.clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(ensemble, 'transformer', lambda config: bags)
    patch.setattr(ensemble, 'check_params', lambda *given: None)
    rows = ensemble.measure(given(), STATISTIC, PROBE, readout=readout, chunk_size=2)
    next(rows)
    assert len(params) > len(taken)
    found = [{}, *rows]
  assert [row['seed'] for row in found[1:]] == list(range(1, len(SEEDS)))
  for one, other in zip(found[1:], family[1:], strict=True):
    assert one['preference'] == other['preference'] and one['top'] == other['top']
    np.testing.assert_array_equal(one['layers']['cosine'], other['layers']['cosine'])
  # Shapes, and the program for the only size of a batch.
  assert len(reads) <= 3


def test_networks_that_cannot_be_measured_together():
  params = init_params(CONFIG, 0)
  other = dataclasses.replace(CONFIG, rope_theta=7.0)
  probe = Probe('tokens', 2, 3)
  for given, seeds, named in (([(CONFIG, params), (other, params)], None, 'model 1 has another'),
                              ([], None, 'no model'),
                              ([(CONFIG, params)], range(1), 'seeds='),
                              (ensemble.transformer(CONFIG), None, 'seeds='),
                              (ensemble.transformer(CONFIG), 3, 'seeds=3 are not several'),
                              (ensemble.transformer(CONFIG), '0-2', "seeds='0-2' are not several")):
    with pytest.raises(InputError, match=named):
      list(ensemble.measure(given, preference.predictions(V), probe, seeds, chunk_size=4))


@pytest.mark.parametrize('given, named', [
    (CONFIG, 'ModelConfig is not .*; of a configuration analysis.transformer makes'),
    ({'wte.weight': np.ones(3)}, 'of a state dict storage.huggingface.from_state_dict makes'),
    (types.SimpleNamespace(state_dict=dict), 'of a PyTorch module .*from_transformers makes'),
    ('tiny_gpt2:42', r'of a name storage.open\(name\).load\(\) makes'),
    (['tiny_gpt2:42'], r'str is not a model.*storage.open\(name\).load\(\) makes'),
    (3, 'int is not a family')])
def test_what_is_no_network_is_named_with_what_makes_one_of_it(given, named):
  with pytest.raises(InputError, match=named):
    list(ensemble.measure(given, preference.predictions(V), PROBE, seeds=None))


@pytest.mark.parametrize('statistic, probe, message', [
    (preference.predictions, PROBE, r'function is not a statistic, such as analysis.predictions\('),
    ('predictions', PROBE, 'str is not a statistic, .*; give one$'),
    (STATISTIC, 1000, 'int is not an analysis.Probe')])
def test_what_is_no_statistic_or_probe_is_named(statistic, probe, message):
  with pytest.raises(InputError, match=message):
    list(ensemble.measure(bag_of_words(), statistic, probe, range(1)))


def test_a_family_needs_a_configuration():
  with pytest.raises(InputError, match='is not a ModelConfig; of a PyTorch module .*from_transf'):
    ensemble.transformer(types.SimpleNamespace(state_dict=dict))


def test_one_network_that_is_given():
  pair = CONFIG, init_params(CONFIG, 3)
  one, = ensemble.measure(pair, STATISTIC, PROBE)
  same, = ensemble.measure([pair], STATISTIC, PROBE)
  assert one['preference'] == same['preference']


@pytest.mark.parametrize('reduce, adds_up', [
    (lambda x_BD: {'sum': (x_BD**2).sum()}, True), (lambda x_BD: {'sum': (x_BD**2).mean()}, False),
    (lambda x_BD: {'nan': x_BD.sum() * np.nan}, True)])
def test_a_statistic_whose_sums_do_not_add_up_is_refused(reduce, adds_up):
  statistic = Statistic(('hidden_last',), lambda outputs: reduce(outputs['hidden_last']), dict)
  for size in (N, 1):
    measured = ensemble.measure(bag_of_words(), statistic, PROBE, [0], batch_size=size)
    if adds_up:
      list(measured)
    else:
      with pytest.raises(InputError, match='does not add up: .*return sums and counts'):
        list(measured)


def test_a_probe_of_a_network_with_heads_or_without():
  config, probe = configs.get('gpt2_1b2'), Probe('tokens', 10_000, 1024)
  assert chunks.batch_size_of(config, probe, 'tpu') == 16
  without = types.SimpleNamespace(vocab_size=19)
  assert chunks.batch_size_of(without, probe, 'tpu') == 64
