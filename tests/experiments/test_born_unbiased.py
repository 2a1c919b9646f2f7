"""Networks born with and without the bias: same weights, same data, compared seed by seed."""

import numpy as np
import pytest

from bornbiased_jax.storage import checkpoint
from programs import results_of

pytestmark = pytest.mark.slow


@pytest.fixture
def directory(small):
  return small('born_unbiased')


def test_both_are_born_with_the_same_weights(directory):
  own, centred = (checkpoint.load_params(directory / init / 'seed_42', 0)[1]
                  for init in ('gpt2', 'centred'))
  np.testing.assert_array_equal(own['embedding'], centred['embedding'])
  for part in ('query', 'up', 'down'):
    np.testing.assert_array_equal(own['blocks'][part]['kernel'], centred['blocks'][part]['kernel'])
  assert not own['blocks']['down']['bias'].any() and centred['blocks']['down']['bias'].all()


def test_at_birth_one_of_them_is_biased(directory):
  at_start = {(row['init'], row['seed']): row for row in results_of(directory)['rows']
              if row['step'] == 0}
  for seed in (42, 43):
    own, centred = at_start['gpt2', seed], at_start['centred', seed]
    assert own['cosine'] > 0.1 and own['cosine'] > 2 * centred['cosine']
    for row in (own, centred):
      assert (row['tau'], row['birth_overlap']) == pytest.approx((1, 1), abs=1e-5)
      assert row['z'] > 20 > 5 > abs(row['control_z'])


def test_differences_are_paired_by_seed(directory):
  results = results_of(directory)
  rows = {(row['init'], row['seed']): row['z'] for row in results['rows'] if row['step'] == 3}
  assert rows.keys() == {(init, seed) for init in ('gpt2', 'centred') for seed in (42, 43)}
  summary = next(row for row in results['summary']
                 if (row['step'], row['init']) == (3, 'difference'))
  paired = [rows['centred', seed] - rows['gpt2', seed] for seed in (42, 43)]
  assert summary['z'] == pytest.approx(np.mean(paired))
  assert summary['z_both'] == pytest.approx(paired)
