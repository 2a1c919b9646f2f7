"""The software and hardware on which a measured number may depend."""

from collections.abc import Iterator
import contextlib
import importlib.metadata
import math
import os
from pathlib import Path
import platform
import re
import shutil
import sys

import jax

PACKAGES = ('bornbiased_jax', 'jax', 'jaxlib', 'flax', 'numpy', 'scipy')
# What lets JAX use an accelerator, and the extras of this package that install it.
_PLUGINS = {'gpu': (('jax-cuda12-plugin', 'jax-cuda13-plugin'), 'cuda12'),
            'tpu': (('libtpu',), 'tpu')}
# Where the kernel says to which control groups this process belongs, and where they are. By their
# controllers, of version 2 and 1: the files with what a group may use before it is killed or slowed
# down, the one with what it uses, and the entry of memory.stat with what of this it can give back.
_MEMORY, _OWN_GROUPS, _GROUPS = '/proc/meminfo', '/proc/self/cgroup', '/sys/fs/cgroup'
_GROUP_FILES = {
    '': (('memory.max', 'memory.high'), 'memory.current', 'inactive_file'),
    'memory': (('memory.limit_in_bytes',), 'memory.usage_in_bytes', 'total_inactive_file')}
# The limits of a process, and the entries of /proc/self/status with what it uses of them.
_PROCESS, _OF_PROCESS = '/proc/self/status', {'RLIMIT_AS': 'VmSize:', 'RLIMIT_DATA': 'VmData:'}
_TPU_VARIABLES = ('TPU_ACCELERATOR_TYPE', 'TPU_WORKER_ID', 'TPU_NAME', 'COLAB_TPU_ADDR')


def environment() -> dict:
  """Versions, backend, devices and XLA's flags of this process, as a dict that JSON can hold."""
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
      'xla_flags': os.environ.get('XLA_FLAGS') or None,
  }


def processor() -> str:
  """The processor's model and how many cores it has, to go with a timing."""
  name = _find('/proc/cpuinfo', r'^model name\s*:\s*(.+)$') or platform.processor()
  return f'{(name or platform.machine()).replace(",", "")} ({os.cpu_count()} cores)'


def free_memory() -> float:
  """Bytes that are free for parameters: on all accelerators together, or on a host without any.

  It is infinity where nobody says.
  """
  devices = jax.local_devices()
  if devices[0].platform != 'cpu':
    memory = [device.memory_stats() for device in devices]
    # Some allocators keep no account.
    return (sum(each['bytes_limit'] - each['bytes_in_use'] for each in memory)
            if all(memory) else math.inf)
  available = 1024 * _number(_MEMORY, 'MemAvailable:') or _physical_memory()
  return min([available, *_left_to_groups(), *_left_to_process()])


def _physical_memory() -> float:
  with contextlib.suppress(AttributeError, ValueError, OSError):  # Not every system says it.
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  return math.inf


def _left_to_process() -> Iterator[float]:
  """What the limits of this process leave to it, as `ulimit -v` sets them."""
  with contextlib.suppress(ImportError):  # Only Unix has them.
    import resource
    for name, entry in _OF_PROCESS.items():
      limit, _ = resource.getrlimit(getattr(resource, name))
      if limit != resource.RLIM_INFINITY:
        yield max(0, limit - 1024 * _number(_PROCESS, entry))


def _left_to_groups() -> Iterator[float]:
  """What the limits of this process's groups, and of those above them, leave to it."""
  for controllers, path in re.findall(r'^\d+:(.*?):/?(.*)$', _read(_OWN_GROUPS), re.MULTILINE):
    version = 'memory' if 'memory' in controllers.split(',') else controllers
    if version in _GROUP_FILES:
      limit_files, use_file, idle_entry = _GROUP_FILES[version]
      root = Path(_GROUPS, version)
      # In a container the path may be that outside of it; its own group then is the root.
      for group in [root / path, *(root / path).parents]:
        limits = [_number(group / file) for file in limit_files if group.is_relative_to(root)]
        if any(limits):
          idle = _number(group / 'memory.stat', f'{idle_entry} ')
          yield max(0, min(filter(None, limits)) - max(0, _number(group / use_file) - idle))


def _number(file, before=''):
  """The number that follows in a file of the kernel; 0 if there is none."""
  return int(_find(file, rf'^{before}\s*(\d+)') or 0)


def _find(file, pattern):
  """What a pattern finds in a file of the kernel, if there is one."""
  found = re.search(pattern, _read(file), re.MULTILINE)
  return found and found[1].strip()


def _read(file):
  with contextlib.suppress(OSError):
    return Path(file).read_text()
  return ''


def unused_accelerator() -> str | None:
  """What to do, in one line, if the machine has a GPU or TPU that JAX does not use; else None."""
  kind = _accelerator()
  if kind is None or os.environ.get('JAX_PLATFORMS') or jax.default_backend() == kind:
    return None
  plugins, extras = _PLUGINS[kind]
  found = {name: _version(name) for name in plugins if _version(name)}
  if not found:
    advice = f"install the extra, such as pip install 'bornbiased_jax[{extras}]', and restart"
  elif kind == 'gpu' and _version('jaxlib') not in found.values():
    advice = (f'{found} does not fit jaxlib {_version("jaxlib")}: install jax and its plugin in '
              'one version, and restart')
  else:
    advice = 'restart the kernel (on Colab: Runtime, Restart session)'
  return f'This machine has a {kind.upper()}, but JAX {jax.__version__} uses the CPU: {advice}.'


def unusable_platform() -> str | None:
  """What to do, in one line, if JAX cannot use what JAX_PLATFORMS names; else None."""
  wanted = os.environ.get('JAX_PLATFORMS')
  try:
    if wanted:
      jax.local_devices()
  # For 'cuda' without a GPU, JAX only fails an assertion.
  except (RuntimeError, AssertionError) as error:
    reason = str(error) or 'no such device was found'
    return f'JAX_PLATFORMS={wanted} cannot be used here: {reason}; unset it'
  return None


def _accelerator():
  """'gpu', 'tpu' or None, as the machine shows without JAX."""
  if shutil.which('nvidia-smi') or Path('/dev/nvidia0').exists():
    return 'gpu'
  on_tpu = any(os.environ.get(name) for name in _TPU_VARIABLES)
  return 'tpu' if on_tpu or list(Path('/dev').glob('accel[0-9]*')) else None


def _version(name):
  if name == __package__:  # A checkout may be newer than when it was installed, or never was.
    return sys.modules[name].__version__
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None
