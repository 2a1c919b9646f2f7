"""Four fake CPU devices for every test, and programs compiled fast and once; said before jax is imported.

Most tests run a program once, and compiling it is most of their time.
"""

import os
import tempfile

import pytest

COUNT = '--xla_force_host_platform_device_count'

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if COUNT not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {COUNT}=4'.strip()

_compiled = tempfile.TemporaryDirectory(prefix='compiled_')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _compiled.name)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.1')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')


def pytest_xdist_auto_num_workers(config):
  """One more than cores, as some tests wait for programs that they start."""
  return 1 + (os.cpu_count() or 1)


@pytest.fixture(scope='module')
def optimized():
  """For modules that compute more than they compile, or ask for bits, in this process and in those it starts."""
  import jax
  jax.clear_caches()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', '0')
    jax.config.update('jax_disable_most_optimizations', False)
    yield
  jax.config.update('jax_disable_most_optimizations', os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] != '0')
