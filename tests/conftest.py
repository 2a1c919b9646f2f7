"""Settings of the whole test run, made before jax is imported.

Every test sees four fake CPU devices. Programs are compiled with few optimizations and kept in
a cache on disk, because most tests run a program once and spend most of their time compiling it.
An operation that would promote ranks implicitly raises an error.

Processes that tests start inherit all of this through the environment, and so they find in the
cache what a test has compiled, and the other way round.
"""

import gc
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

# Compiles in a third of the time of all optimizations, and runs almost as fast: older code for
# fusions, in one piece, and few passes.
FEW = ('--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 '
       '--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true')
COUNT = '--xla_force_host_platform_device_count'
# Two files of this name would be one module to the search for doctests.
collect_ignore_glob = ['*conftest.py']


def _add_flags(flags):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flags}'.strip()


def _knows(flags):
  """Whether XLA has these flags. It ends a process that gives it others."""
  return not subprocess.run([sys.executable, '-c', 'import jax; jax.devices()'],
                            env=os.environ | {'XLA_FLAGS': flags}, capture_output=True).returncode


os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if COUNT not in os.environ.get('XLA_FLAGS', ''):
  _add_flags(f'{COUNT}=4')
# The fixture `as_users_do` starts processes without what shortens compiling.
if 'AS_USERS_DO' not in os.environ:
  os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
  is_there = FEW in os.environ['XLA_FLAGS']  # Workers inherit it.
  if not is_there and os.environ['JAX_PLATFORMS'] == 'cpu' and _knows(FEW):
    _add_flags(FEW)
# Several workers share the cores, where threads of linear algebra would wait for each other.
for library in 'OPENBLAS', 'OMP', 'MKL':
  os.environ.setdefault(f'{library}_NUM_THREADS', '1')

_compiled = tempfile.TemporaryDirectory(prefix='compiled_')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _compiled.name)
# To keep what compiles in less time takes longer than to compile it again.
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.15')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
# Programs that have huge pages need not start themselves again.
os.environ.setdefault('GLIBC_TUNABLES', 'glibc.malloc.hugetlb=1')
os.environ.setdefault('JAX_NUMPY_RANK_PROMOTION', 'raise')
# Where an operation stands in Python is no part of what is compiled, and takes time to write down.
os.environ.setdefault('JAX_TRACEBACK_IN_LOCATIONS_LIMIT', '0')


def pytest_collection_modifyitems(items):
  """Files with slow tests come first, so that no worker is alone with one at the end.

  Of these the first is the one whose results others read, so that no worker waits for another.
  """
  slow = {item.path for item in items if item.get_closest_marker('slow')}
  items.sort(key=lambda item: (item.path not in slow, item.path.name != 'test_programs.py'))


def pytest_collection_finish(session):
  """Modules live as long as the process, so that nobody need look for garbage among them."""
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True, scope='session')
def small_product():
  """The rate of the product, which training compares itself with, is measured in no time."""
  from bornbiased_jax.models import flops
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(flops, 'matmul_size', lambda: 64)
    yield


@pytest.fixture(autouse=True, scope='module')
def free_programs():
  """Compiled programs are kept for ever, until all workers together have half of the memory.

  Those of all tests need about five gigabytes. What is freed and needed again is compiled again.
  """
  yield
  statm, workers = pathlib.Path('/proc/self/statm'), os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1)
  pages = int(statm.read_text().split()[1]) if statm.exists() else 0
  if 2 * pages * int(workers) > os.sysconf('SC_PHYS_PAGES') and 'jax' in sys.modules:
    sys.modules['jax'].clear_caches()
    gc.collect()


@pytest.fixture(scope='module')
def optimized():
  """For modules that compute longer than they compile: with the optimizations that pay there."""
  import jax
  with pytest.MonkeyPatch.context() as patch:
    before = os.environ.get('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
    patch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
    jax.config.update('jax_disable_most_optimizations', False)
    yield
  jax.config.update('jax_disable_most_optimizations', before != '0')


@pytest.fixture
def as_users_do():
  """The environment of a process that compiles as users do, for tests that compare bits."""
  return os.environ | {'XLA_FLAGS': os.environ['XLA_FLAGS'].replace(FEW, ''),
                       'JAX_DISABLE_MOST_OPTIMIZATIONS': '0', 'AS_USERS_DO': '1'}


@pytest.fixture(autouse=True, scope='module')
def same_signals():
  """A process that dies of a signal which Python ignores says nothing; no test may leave one so."""
  yield
  for name in 'SIGPIPE', 'SIGXFSZ':
    if hasattr(signal, name):
      assert signal.getsignal(getattr(signal, name)) == signal.SIG_IGN, name
  assert logging.root.manager.disable == logging.NOTSET, 'tests that follow could read no warning'
