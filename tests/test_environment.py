"""The environment that results record is the one at hand."""

import json
import platform

import flax
import jax
import jaxlib
import numpy as np
import scipy

from bornbiased_jax import environment


def test_versions_and_devices_are_those_at_hand():
  found = environment.environment()
  for module in (flax, jax, jaxlib, np, scipy):
    assert found[module.__name__] == module.__version__
  assert found['python'] == platform.python_version()
  assert found['backend'] == jax.devices()[0].platform.replace('cuda', 'gpu')
  assert (found['num_devices'], found['num_processes']) == (len(jax.devices()), 1)
  assert json.loads(json.dumps(found)) == found


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
  monkeypatch.setattr(environment, 'PACKAGES', ('numpy', 'no_such_package'))
  found = environment.environment()
  assert (found['numpy'], found['no_such_package']) == (np.__version__, None)
