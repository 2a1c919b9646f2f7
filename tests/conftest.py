"""Settings of the whole test run, made before jax is imported.

Every test sees four fake CPU devices. Programs are compiled with few optimizations and kept in
a cache on disk, because most tests run a program once and spend most of their time compiling it.
An operation that would promote ranks implicitly raises an error.

Processes that tests start inherit all of this through the environment.
"""

import gc
import os
import tempfile

import pytest

# What shortens XLA's compiling for a CPU to a half or less: older code for fusions, in one piece.
QUICK = {'xla_cpu_use_fusion_emitters': False, 'xla_cpu_parallel_codegen_split_count': 1}
# Few optimizations compile in a third of the time of all, and run almost as fast.
FEW = QUICK | {'xla_backend_optimization_level': 1, 'xla_llvm_disable_expensive_passes': True}
COUNT = '--xla_force_host_platform_device_count'
# Two files of this name would be one module to the search for doctests.
collect_ignore_glob = ['*conftest.py']

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if COUNT not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {COUNT}=4'.strip()
# Several workers share the cores, where threads of linear algebra would wait for each other.
for library in 'OPENBLAS', 'OMP', 'MKL':
  os.environ.setdefault(f'{library}_NUM_THREADS', '1')

_compiled = tempfile.TemporaryDirectory(prefix='compiled_')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _compiled.name)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
os.environ.setdefault('JAX_NUMPY_RANK_PROMOTION', 'raise')
# Where an operation stands in Python is no part of what is compiled, and takes time to write down.
os.environ.setdefault('JAX_TRACEBACK_IN_LOCATIONS_LIMIT', '0')


def pytest_collection_modifyitems(items):
  """Files with slow tests come first, so that no worker is alone with one at the end."""
  slow = {item.path for item in items if item.get_closest_marker('slow')}
  items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session):
  """Modules live as long as the process, so that nobody need look for garbage among them."""
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)


def pytest_xdist_auto_num_workers(config):
  """One worker more than there are cores, as some tests wait for programs that they start."""
  return 1 + (os.cpu_count() or 1)


@pytest.fixture(scope='session', autouse=True)
def compiling():
  """How this process and those that it starts compile, if this version of JAX knows the options.

  Yields a function that sets other options of XLA, {} being what users have.
  """
  from jax._src import compiler
  original, current = getattr(compiler, 'get_compile_options', None), {}
  known, inherited = bool(original) and _is_known(FEW), os.environ['XLA_FLAGS']

  def set_options(options):
    current.clear()
    current.update(options if known else {})
    flags = [f'--{name}={str(value).lower()}' for name, value in current.items()]
    os.environ['XLA_FLAGS'] = ' '.join([inherited, *flags])

  def get_compile_options(*args, **kwargs):
    options = original(*args, **kwargs)
    options.env_option_overrides = [*options.env_option_overrides, *current.items()]
    return options

  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XLA_FLAGS', inherited)
    patch.setattr(compiler, 'get_compile_options', get_compile_options, raising=False)
    set_options(QUICK)
    yield set_options


def _is_known(options):
  import jax
  try:
    jax.jit(lambda x: x + 1, compiler_options=options)(0)
  except jax.errors.JaxRuntimeError:
    return False
  return jax.default_backend() == 'cpu'


@pytest.fixture(scope='module')
def optimized(compiling):
  """For modules that compute longer than they compile: with the optimizations that pay there."""
  yield from _compiled_with(compiling, FEW)


@pytest.fixture(scope='module')
def as_users_do(compiling):
  """For tests that compare bits: programs are compiled as users compile them."""
  yield from _compiled_with(compiling, {})


def _compiled_with(compiling, options):
  import jax
  jax.clear_caches()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
    jax.config.update('jax_disable_most_optimizations', False)
    compiling(options)
    yield
  compiling(QUICK)
  jax.config.update('jax_disable_most_optimizations',
                    os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] != '0')
  jax.clear_caches()
