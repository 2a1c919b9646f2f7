"""A run that a test goes on with is one of the same code, and theory draws few networks."""

import functools

import jax
from jax.sharding import AxisType
import pytest

from bornbiased_jax.analysis import ensemble
from bornbiased_jax.analysis.theory import random_energy
from experiments import coordinates
from experiments.shared import measurements, provenance


@pytest.fixture(autouse=True, scope='session')
def one_commit():
  """The commit when the tests began, whatever is committed meanwhile."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(provenance, 'commit', functools.cache(provenance.commit))
    yield


@pytest.fixture(autouse=True, scope='module')
def ensembles_on_one_device():
  """Their programs compile and run in less time than those that are spread (test_ensemble)."""
  with pytest.MonkeyPatch.context() as patch:
    one = jax.make_mesh((1,), ('seed',), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    patch.setattr(ensemble, '_mesh', lambda: one)
    yield


@pytest.fixture(autouse=True, scope='session')
def few_networks_of_theory():
  """Theory of preferred tokens in a moment, and less exact: no test of a program reads it."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(measurements, 'FLOPS_OF_THEORY', 0)
    patch.setattr(coordinates, 'NUM_NETWORKS', 5)  # As many as other programs have.
    patch.setattr(random_energy, '_NUM_TOKENS', 100)
    yield


@pytest.fixture
def present_commit(monkeypatch):
  """For tests of how the commit is found: it is looked for each time."""
  monkeypatch.setattr(provenance, 'commit', provenance.commit.__wrapped__)
