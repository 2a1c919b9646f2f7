"""The environment that results record is the one at hand."""

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys

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


GiB = 2**30


def test_free_memory_is_what_the_kernel_says(monkeypatch, tmp_path):
  monkeypatch.setattr(environment, '_GROUPS', tmp_path)  # Where there are none.
  physical = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  assert 0 < environment.free_memory() <= physical


# As kernel.org describes both versions: the lines of /proc/self/cgroup, and files of groups.
@pytest.mark.parametrize('lines, groups, free', [
    ('0::/', {'': ('max', GiB, 0)}, None), ('0::/', {}, None), ('', {'': (GiB, 0, 0)}, None),
    ('0::/', {'': (3 * GiB // 4, 0, 0)}, 3 * GiB // 4),
    ('0::/', {'': (GiB, GiB // 4, 0)}, 3 * GiB // 4),
    # Above `high` a group is slowed down, as if it had no more.
    ('0::/', {'': ('max', GiB // 4, 0, GiB)}, 3 * GiB // 4),
    ('0::/', {'': (GiB, GiB // 4, 0, GiB // 2)}, GiB // 4),
    ('0::/', {'': (GiB, GiB // 4, 0, 'max')}, 3 * GiB // 4),
    # What files alone keep in memory is given back.
    ('0::/', {'': (GiB, GiB // 2, GiB // 4)}, 3 * GiB // 4), ('0::/', {'': (GiB, GiB, 0)}, 0),
    # A job has its own group; the least of the limits holds, and what a whole group uses.
    ('0::/a/job', {'a/job': (GiB, GiB // 4, 0), 'b': (GiB // 8, 0, 0)}, 3 * GiB // 4),
    ('0::/a/job', {'a/job': (GiB, 0, 0), 'a': (GiB // 2, GiB // 4, 0)}, GiB // 4),
    ('0::/a/job', {'a/job': ('max', 0, 0), 'a': ('max', 0, 0), '': (GiB, GiB // 2, 0)}, GiB // 2),
    # A container may see the path that its group has outside of it, or one above its root.
    ('0::/docker/1a2b', {'': (GiB, GiB // 2, 0)}, GiB // 2),
    ('0::/../../slice', {'': (GiB, GiB // 2, 0)}, GiB // 2),
    ('12:cpu,cpuacct:/x\n9:memory:/docker/1\n1:name=systemd:/y\n0::/z', {
        'memory/docker/1': (GiB, GiB // 2, GiB // 4), 'z': ('max', 0, 0)}, 3 * GiB // 4),
    ('9:memory:/docker/1', {'memory': (GiB, GiB // 2, 0), 'docker/1': (1, 0, 0)}, GiB // 2),
    ('4:hugetlb,memory:/x', {'memory/x': (GiB, GiB // 2, 0)}, GiB // 2),
    ('9:memory:/docker/1', {'memory/docker/1': (2**63 - 4096, GiB, 0)}, None),
])
def test_free_memory_is_what_control_groups_leave(lines, groups, free, monkeypatch, tmp_path):
  (tmp_path / 'own').write_text(lines)
  monkeypatch.setattr(environment, '_OWN_GROUPS', tmp_path / 'own')
  monkeypatch.setattr(environment, '_GROUPS', tmp_path / 'groups')
  unlimited = environment.free_memory()
  for path, (limit, used, idle, *high) in groups.items():
    group, is_first = tmp_path / 'groups' / path, path.startswith('memory')
    group.mkdir(parents=True, exist_ok=True)
    names = ('memory.limit_in_bytes', 'memory.usage_in_bytes') if is_first else (
        'memory.max', 'memory.current', 'memory.high')
    for name, value in zip(names, (limit, used, *high), strict=False):
      (group / name).write_text(f'{value}\n')
    of_all = 'total_' * is_first  # Beside what is of a group without those in it.
    (group / 'memory.stat').write_text(f'anon 5\n{of_all}inactive_file {idle}\nactive_file 7\n')
  found = environment.free_memory()
  assert found == free if free is not None else found == pytest.approx(unlimited, rel=0.2)


def test_free_memory_where_the_kernel_says_nothing(monkeypatch, tmp_path):
  """As on a Mac: it is all that the machine has, without what is free of it."""
  for name in '_MEMORY', '_GROUPS', '_OWN_GROUPS':
    monkeypatch.setattr(environment, name, tmp_path / 'none')
  physical = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  assert environment.free_memory() == physical
  monkeypatch.delattr(os, 'sysconf')
  assert environment.free_memory() == math.inf


def test_free_memory_is_what_ulimit_leaves():
  """Either limit alone: the soft limit can be taken back."""
  program = """
import resource, time
from bornbiased_jax import environment
environment.free_memory()
time.sleep(1)  # Threads that JAX starts now reserve addresses.
for name in 'RLIMIT_DATA', 'RLIMIT_AS':
  limit, before = getattr(resource, name), resource.getrlimit(getattr(resource, name))
  used = environment._number('/proc/self/status', environment._OF_PROCESS[name])
  resource.setrlimit(limit, (1024 * used + 2**30, before[1]))
  free = environment.free_memory()
  bytearray(int(free) // 2)
  try:
    bytearray(2 * int(free))
  except MemoryError:
    print(free)
  resource.setrlimit(limit, before)
"""
  environ = dict(os.environ, JAX_PLATFORMS='cpu')
  found = subprocess.run([sys.executable, '-c', program], env=environ, capture_output=True,
                         text=True, check=True).stdout.split()
  assert len(found) == 2
  assert all(2**29 < float(free) <= 2**30 for free in found)  # Others may take some.


def test_an_allocator_without_an_account_is_no_limit(monkeypatch):
  class Device:
    platform = 'gpu'
    memory_stats = staticmethod(lambda: None)

  monkeypatch.setattr(jax, 'local_devices', lambda: [Device(), Device()])
  assert environment.free_memory() == math.inf
