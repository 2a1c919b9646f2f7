"""The environment that results record is the one at hand."""

import importlib.metadata
import json
import os
import platform
import re

import flax
import jax
import jaxlib
import numpy as np
import pytest
import scipy

import bornbiased_jax
from bornbiased_jax import environment


def test_versions_and_devices_are_those_at_hand():
  found = environment.environment()
  for module in (flax, jax, jaxlib, np, scipy):
    assert found[module.__name__] == module.__version__
  assert found['python'] == platform.python_version()
  assert found['backend'] == jax.devices()[0].platform.replace('cuda', 'gpu')
  assert (found['num_devices'], found['num_processes']) == (len(jax.devices()), 1)
  assert found['xla_flags'] == os.environ['XLA_FLAGS']  # Which conftest sets.
  assert json.loads(json.dumps(found)) == found


def test_a_checkout_has_its_own_version_whatever_was_installed(monkeypatch):
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: '0.0.1')
  found = environment.environment()
  assert (found['bornbiased_jax'], found['numpy']) == (bornbiased_jax.__version__, '0.0.1')


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
  monkeypatch.setattr(environment, 'PACKAGES', ('numpy', 'no_such_package'))
  found = environment.environment()
  assert (found['numpy'], found['no_such_package']) == (np.__version__, None)


@pytest.fixture
def machine(monkeypatch):
  """A machine as its devices, environment variables and installed packages show it."""
  def show(nvidia=False, variables=(), versions=None):
    monkeypatch.delenv('JAX_PLATFORMS', raising=False)
    for name in environment._TPU_VARIABLES:
      monkeypatch.delenv(name, raising=False)
    for name in variables:
      monkeypatch.setenv(name, 'v5litepod-8')
    monkeypatch.setattr(environment.shutil, 'which', lambda name: name if nvidia else None)
    monkeypatch.setattr(environment.Path, 'exists', lambda _: False)
    monkeypatch.setattr(environment.Path, 'glob', lambda *_: iter(()))
    monkeypatch.setattr(environment, '_version', (versions or {}).get)
    monkeypatch.setattr(environment.jax, 'default_backend', lambda: 'cpu')
  return show


@pytest.mark.parametrize('shown, advice', [
    (dict(nvidia=True), r'has a GPU.*\[cuda12\]'),
    (dict(nvidia=True, versions={'jax-cuda12-plugin': '0.7.2', 'jaxlib': '0.12.0'}),
     r'0\.7\.2.*does not fit jaxlib 0\.12\.0'),
    (dict(nvidia=True, versions={'jax-cuda12-plugin': '0.7.2', 'jaxlib': '0.7.2'}), 'restart'),
    (dict(variables=['TPU_WORKER_ID']), r'has a TPU.*\[tpu\]'),
    (dict(variables=['TPU_WORKER_ID'], versions={'libtpu': '0.0.20'}), 'restart'),
])
def test_an_accelerator_that_jax_does_not_use_is_named_in_one_line(machine, shown, advice):
  machine(**shown)
  line = environment.unused_accelerator()
  assert re.search(advice, line) and '\n' not in line


def test_nothing_is_said_of_a_cpu_or_of_a_platform_that_was_chosen(machine, monkeypatch):
  machine()
  assert environment.unused_accelerator() is None
  machine(nvidia=True)
  monkeypatch.setattr(environment.jax, 'default_backend', lambda: 'gpu')
  assert environment.unused_accelerator() is None
  monkeypatch.setattr(environment.jax, 'default_backend', lambda: 'cpu')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  assert environment.unused_accelerator() is None


@pytest.mark.parametrize('platforms, error, words', [
    ('cuda', AssertionError(), 'no such device was found'),
    ('tpu', RuntimeError("Unable to initialize backend 'tpu'"), "Unable to initialize backend")])
def test_a_platform_that_is_not_here_is_named(platforms, error, words, monkeypatch):
  def fail():
    raise error

  monkeypatch.setenv('JAX_PLATFORMS', platforms)
  assert environment.unusable_platform() is None
  monkeypatch.setattr(environment.jax, 'local_devices', fail)
  line = environment.unusable_platform()
  assert line.startswith(f'JAX_PLATFORMS={platforms} cannot be used here: {words}')
  monkeypatch.delenv('JAX_PLATFORMS')
  assert environment.unusable_platform() is None


def test_free_memory_is_what_the_kernel_says(monkeypatch, tmp_path):
  free = environment.free_memory()
  physical = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  assert 0 < free <= physical
  limit = tmp_path / 'memory.max'
  monkeypatch.setattr(environment, '_CGROUP_LIMIT', limit)
  for content, wanted in (('max\n', free), ('12345\n', 12345)):
    limit.write_text(content)
    assert environment.free_memory() == pytest.approx(wanted, rel=0.2)
