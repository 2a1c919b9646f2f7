"""The software and hardware on which a measured number may depend."""

import importlib.metadata
import platform

import jax

PACKAGES = ('bornbiased_jax', 'jax', 'jaxlib', 'flax', 'numpy', 'scipy')


def environment() -> dict:
  """Versions, backend and devices of this process, as a dict that JSON can hold."""
  device = jax.local_devices()[0]
  memory = device.memory_stats() if device.platform != 'cpu' else None
  return {
      'python': platform.python_version(),
      **{name: _version(name) for name in PACKAGES},
      'backend': jax.default_backend(),
      'device': device.device_kind,
      'num_devices': jax.device_count(),
      'num_processes': jax.process_count(),
      'memory_bytes': (memory or {}).get('bytes_limit'),
  }


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:  # Run from a checkout that is not installed.
    return None
