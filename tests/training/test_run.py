"""A run that is impossible is refused as soon as it is described."""

import pytest

from bornbiased_jax.errors import InputError
import tiny_runs


@pytest.mark.parametrize('change, message', [
    (dict(shape=(4, 1, 1), recipe=dict(batch_size=6)), 'choose a multiple of 4'),
    (dict(shape=(2, 1, 1), recipe=dict(accumulation=8)), 'choose a multiple of 16'),
    (dict(shape=(2, 1, 1), seeds=(1, 2)),
     '2 networks train together on one device only; here are 2'),
    (dict(recipe=dict(length=4096)), 'length=4096 exceeds'),
    (dict(seeds=(1, 1)), 'has one of them twice'),
    (dict(seeds=(2**32,)), 'seed 4294967296 is not'),
    (dict(recipe=dict(start_id=50)), 'start_id=50 is not one of the 50 token ids'),
    (dict(save_every=0), 'save_every=0 must be a whole number'),
])
def test_impossible_runs_are_refused(tmp_path, change, message):
  with pytest.raises(InputError, match=message):
    tiny_runs.run(tmp_path, **change)
