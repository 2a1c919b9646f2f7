"""A run that a test stops and goes on with is one of the same code."""

import functools

import pytest

from experiments.shared import provenance


@pytest.fixture(autouse=True, scope='session')
def one_commit():
  """The commit when the tests began, whatever is committed meanwhile."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(provenance, 'commit', functools.cache(provenance.commit))
    yield


@pytest.fixture
def present_commit(monkeypatch):
  """For tests of how the commit is found: it is looked for each time."""
  monkeypatch.setattr(provenance, 'commit', provenance.commit.__wrapped__)
