"""Whole runs, with which the tests of training compare theirs."""

import pytest

from bornbiased_jax.training import loop
import tiny_runs


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A function from the shape of a mesh to the folder of an uninterrupted run on it."""
  runs = {}

  def get(*shape):
    if shape not in runs:
      runs[shape] = tmp_path_factory.mktemp('whole')
      loop.train(tiny_runs.run(runs[shape], shape=shape))
    return runs[shape]

  return get
