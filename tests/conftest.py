"""Four fake CPU devices for every test, before jax is imported."""

import os

COUNT = '--xla_force_host_platform_device_count'

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if COUNT not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {COUNT}=4'.strip()
