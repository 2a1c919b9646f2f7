"""Sums over parts add up to the sums over the whole; histograms and spreads are numpy's."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.analysis import attention_sink, preference, similarity
from bornbiased_jax.analysis.statistics import Statistic, combine, frame, histogram, merge
from bornbiased_jax.errors import InputError
from random_outputs import OUTPUTS, N, V, results

EDGES = np.linspace(-2, 2, 9)


SEQUENCE_AXIS = {name: int(name.startswith('residual')) for name in OUTPUTS}

SINGLE = {
    'predictions': preference.predictions(V),
    'inter_sequence': similarity.inter_sequence('hidden_last'),
    'inter_sequence_by_layer': similarity.inter_sequence('residual_last', pair_std=True),
    'intra_sequence': similarity.intra_sequence('hidden'),
    'intra_sequence_by_layer': similarity.intra_sequence('residual'),
    'positional_std': attention_sink.positional_std('residual'),
    'histogram': histogram('residual', EDGES),
}
# Each by itself is what it is in `combine` (test_combine).
STATISTICS = {
    'combined': combine(SINGLE),
    'nested': combine({'a': combine({'b': SINGLE['predictions']}), 'c': SINGLE['inter_sequence']}),
}
every_statistic = pytest.mark.parametrize('statistic', STATISTICS.values(), ids=STATISTICS.keys())


def measure(statistic, first=0, last=N):
  """Sums over sequences first to last - 1, given only what the statistic says that it reads."""
  part = {name: np.take(OUTPUTS[name], range(first, last), SEQUENCE_AXIS[name])
          for name in statistic.reads}
  return jax.jit(statistic.measure)(part)


def assert_same_sums(actual, expected):
  def check(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if np.issubdtype(a.dtype, np.integer):
      np.testing.assert_array_equal(a, b)
    else:
      # Each of N additions rounds by 2^-24 of the sum.
      np.testing.assert_allclose(a, b, rtol=0, atol=N * 2**-24 * np.max(np.abs(b)))

  jax.tree.map(check, actual, expected)


@every_statistic
def test_parts_merge_to_the_whole(statistic):
  parts = [measure(statistic, *ends) for ends in ((0, 8), (8, 9), (9, 24))]
  forwards, backwards = parts[0], parts[-1]
  for part, other in zip(parts[1:], parts[-2::-1], strict=True):
    forwards, backwards = merge(forwards, part), merge(other, backwards)
  whole = measure(statistic)
  assert_same_sums(forwards, whole)
  assert_same_sums(backwards, whole)


@every_statistic
def test_sums_are_counts_or_float32(statistic):
  types = lambda sums: jax.tree.map(lambda leaf: leaf.dtype.name, sums)
  in_float32 = types(measure(statistic))
  assert set(jax.tree.leaves(in_float32)) <= {'int32', 'float32'}
  assert 'int32' in jax.tree.leaves(in_float32)
  halves = {name: jnp.asarray(OUTPUTS[name], jnp.bfloat16) for name in statistic.reads}
  assert types(jax.eval_shape(statistic.measure, halves)) == in_float32


def test_merge_counts_past_float32():
  """No float32 holds 2^24 + 1."""
  assert merge({'count': jnp.int32(2**24)}, {'count': jnp.int32(1)})['count'] == 2**24 + 1


def test_combine():
  together = results(STATISTICS['combined'], OUTPUTS)
  assert list(together) == list(SINGLE)
  alone = {name: results(one, OUTPUTS) for name, one in SINGLE.items()}
  jax.tree.map(np.testing.assert_array_equal, together, alone)


def test_combine_reads_a_name_once():
  one = Statistic(('a', 'b'), lambda outputs: outputs['a'], lambda sums: {})
  two = Statistic(('b', 'c'), lambda outputs: outputs['b'], lambda sums: {})
  assert combine({'one': one, 'two': two}).reads == ('a', 'b', 'c')


def test_positional_std():
  expected = np.sqrt(np.var(OUTPUTS['residual'].astype(np.float64), axis=1, ddof=1).mean(-1))
  actual = results(attention_sink.positional_std('residual'), OUTPUTS)['std']
  np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_histogram():
  values = OUTPUTS['residual']
  inside = np.clip(values, -1.99, 1.99)
  expected = np.histogram(inside, EDGES, density=True)[0]
  actual = results(histogram('residual', EDGES), OUTPUTS)['density']
  np.testing.assert_allclose(actual, expected, rtol=1e-12)
  assert not np.array_equal(inside, values)


def test_histogram_of_uneven_bins_and_of_edges():
  edges = [0, 1, 4, 5]
  x = {'x': np.float32([0, 0.5, 1, 3.9, 4, 5, 9, -1])}
  actual = results(histogram('x', edges), x)['density']
  np.testing.assert_array_equal(actual, np.array([3, 2 / 3, 3]) / 8)


def test_rows_as_a_table_of_pandas():
  pytest.importorskip('pandas')
  table = frame([{'seed': seed, 'token': {'top1_id': 7 + seed}, 'cosine': np.array([0.1, 0.2])}
                 for seed in range(2)])
  assert table['token.top1_id'].tolist() == [7, 8]
  np.testing.assert_array_equal(table['cosine'][1], [0.1, 0.2])


def test_stored_rows_as_a_table_of_pandas(tmp_path):
  pytest.importorskip('pandas')
  (tmp_path / 'results.json').write_text(json.dumps({'rows': [{'seed': 4}], 'summary': []}))
  for path in (tmp_path, tmp_path / 'results.json', str(tmp_path)):
    assert frame(path)['seed'].tolist() == [4]
  with pytest.raises(InputError, match='absent is no results.json'):
    frame(tmp_path / 'absent')


def test_without_pandas_a_line_says_what_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pandas', None)
  with pytest.raises(InputError, match='pandas'):
    frame([])
