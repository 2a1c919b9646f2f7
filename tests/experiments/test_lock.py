"""A second program in one folder is refused, and a program that has ended holds nothing."""

import os
import subprocess
import sys

import pytest

from bornbiased_jax.errors import InputError
from experiments.shared import session


def test_a_folder_is_held_by_one(tmp_path):
  with session.hold(tmp_path / 'runs'):
    with session.hold(tmp_path / 'other'):
      pass
    with (pytest.raises(InputError, match='another program works in'),
          session.hold(tmp_path / 'runs' / '..' / 'runs')):
      pass
  with session.hold(tmp_path / 'runs'):
    assert not (tmp_path / 'runs').exists()


def test_what_was_killed_holds_nothing(tmp_path):
  code = ('import os, pathlib, sys; from experiments.shared import session\n'
          'with session.hold(pathlib.Path(sys.argv[1])): os._exit(9)')
  assert subprocess.run([sys.executable, '-c', code, tmp_path], env=dict(
      os.environ, PYTHONPATH=os.pathsep.join(sys.path))).returncode == 9
  with session.hold(tmp_path):
    pass
