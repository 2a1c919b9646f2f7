"""Four fake CPU devices for every test, and no program compiled twice; said before jax is imported."""

import os
import tempfile

COUNT = '--xla_force_host_platform_device_count'

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if COUNT not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {COUNT}=4'.strip()

_compiled = tempfile.TemporaryDirectory(prefix='compiled_')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _compiled.name)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.1')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
