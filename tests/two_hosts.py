"""A program that runs as two processes, as on two hosts with two devices each."""

import os
from pathlib import Path
import re
import socket
import subprocess
import sys

ROOT = Path(__file__).parents[1]


def with_devices(count):
  """The environment of a process that sees so many devices, and otherwise what tests see."""
  flags = re.sub(r'(device_count)=\d+', rf'\1={count}', os.environ['XLA_FLAGS'])
  return os.environ | {'XLA_FLAGS': flags}


def run(experiment, *arguments):
  """Exit code, stdout and stderr of both processes of `python -m experiments.EXPERIMENT`."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{free.getsockname()[1]}'
  processes = [
      subprocess.Popen(
          [sys.executable, '-m', f'experiments.{experiment}', *map(str, arguments), '--distributed',
           f'--coordinator={address}', '--num_processes=2', f'--process_id={i}'],
          cwd=ROOT, env=with_devices(2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
      for i in range(2)]
  outputs = [process.communicate() for process in processes]
  return [(process.returncode, *output)
          for process, output in zip(processes, outputs, strict=True)]
