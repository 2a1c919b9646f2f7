"""Settings of the whole test run, made before jax is imported.

Every test sees four fake CPU devices. Programs are compiled with few optimizations and kept in
a cache on disk, because most tests run a program once and spend most of their time compiling it.
An operation that would promote ranks implicitly raises an error.

Processes that tests start inherit all of this through the environment, but for QUICK.
"""

import os
import tempfile

import pytest

# What shortens XLA's compiling for a CPU to a half or less: older code for fusions, in one piece.
QUICK = {'xla_cpu_use_fusion_emitters': False, 'xla_cpu_parallel_codegen_split_count': 1}
COUNT = '--xla_force_host_platform_device_count'

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if COUNT not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {COUNT}=4'.strip()
# Several workers share the cores, where threads of linear algebra would wait for each other.
for library in 'OPENBLAS', 'OMP', 'MKL':
  os.environ.setdefault(f'{library}_NUM_THREADS', '1')

_compiled = tempfile.TemporaryDirectory(prefix='compiled_')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _compiled.name)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.1')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
os.environ.setdefault('JAX_NUMPY_RANK_PROMOTION', 'raise')


def pytest_xdist_auto_num_workers(config):
  """One worker more than there are cores, as some tests wait for programs that they start."""
  return 1 + (os.cpu_count() or 1)


@pytest.fixture(scope='session', autouse=True)
def quick():
  """Compiles with QUICK where most optimizations are off, if this version of JAX knows how to."""
  import jax
  from jax._src import compiler
  original = getattr(compiler, 'get_compile_options', None)

  def quick_options(*args, **kwargs):
    options = original(*args, **kwargs)
    debug = options.executable_build_options.debug_options
    if debug.xla_backend_optimization_level == 0 and jax.default_backend() == 'cpu':
      options.env_option_overrides = [*options.env_option_overrides, *QUICK.items()]
    return options

  with pytest.MonkeyPatch.context() as patch:
    if original and _is_known(QUICK):
      patch.setattr(compiler, 'get_compile_options', quick_options)
    yield original


@pytest.fixture(scope='module')
def without_quick(quick):
  """Compiles fusions as users do, to the end of the module, for tests that compare bits."""
  import jax
  from jax._src import compiler
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(compiler, 'get_compile_options', quick, raising=False)
    jax.clear_caches()
    yield
  jax.clear_caches()


def _is_known(options):
  import jax
  try:
    jax.jit(lambda x: x + 1, compiler_options=options)(0)
  except jax.errors.JaxRuntimeError:
    return False
  return True


@pytest.fixture(scope='module')
def optimized():
  """Compiles with all optimizations, in this process and in those that it starts.

  It is for modules that compute longer than they compile, or that compare bits.
  """
  import jax
  jax.clear_caches()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
    jax.config.update('jax_disable_most_optimizations', False)
    yield
  fast = os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] != '0'
  jax.config.update('jax_disable_most_optimizations', fast)
