"""Programs that run as two processes, as on two hosts with two devices each."""

import contextlib
import faulthandler
import functools
import io
import json
import os
from pathlib import Path
import re
import runpy
import socket
import subprocess
import sys
from unittest import mock
import warnings

import jax

from bornbiased_jax.models import flops

ROOT = Path(__file__).parents[1]


def with_devices(count):
  """The environment of a process that sees so many devices, and otherwise what tests see."""
  seen = re.sub(r'(device_count)=\d+', rf'\1={count}', os.environ['XLA_FLAGS'])
  return os.environ | {'XLA_FLAGS': seen}


def run(*commands):
  """For each command (exit code, stdout, stderr) of both processes, which run one after another.

  A command is a program of experiments/ and its arguments, and begins as `python -m` begins it.
  Where another has connected the processes, it may be tiny_runs too.
  """
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{free.getsockname()[1]}'
  host = ['--distributed', f'--coordinator={address}', '--num_processes=2', '--process_id']
  given = [[[*map(str, command), *host[:-1], f'{host[-1]}={i}'] for command in commands]
           for i in range(2)]
  processes = [subprocess.Popen([sys.executable, __file__, json.dumps(each)], cwd=ROOT,
                                env=with_devices(2) | {'PYTHONPATH': str(ROOT)}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for each in given]
  outputs = [process.communicate() for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  # Gloo's own greeting goes to stdout.
  return list(zip(*(json.loads(out.splitlines()[-1]) for out, _ in outputs), strict=True))


def main(commands):
  """Prints exit code, stdout and stderr of each command; the hosts stay connected in between."""
  faulthandler.dump_traceback_later(300, exit=True)  # One waits forever if the other has failed.
  jax.distributed.initialize = functools.cache(jax.distributed.initialize)
  flops.matmul_size = lambda: 64  # As in conftest.
  print(json.dumps([run_here(*command) for command in json.loads(commands)]))


def run_here(program, *arguments):
  out, error, code = io.StringIO(), io.StringIO(), None
  with (contextlib.redirect_stdout(out), contextlib.redirect_stderr(error),
        mock.patch.object(sys, 'argv', [program, *arguments]),
        # Another test may have imported the program.
        warnings.catch_warnings(action='ignore', category=RuntimeWarning)):
    try:
      module = program if program == 'tiny_runs' else f'experiments.{program}'
      runpy.run_module(module, run_name='__main__', alter_sys=True)
    except SystemExit as end:
      code = end.code
  return code or 0, out.getvalue(), error.getvalue()


if __name__ == '__main__':
  main(*sys.argv[1:])
