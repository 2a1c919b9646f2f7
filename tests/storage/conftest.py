"""What the tests of `huggingface` share: `transformers`, and golden directories to change."""

from pathlib import Path
import shutil

import pytest

from directories import quiet_transformers
from make_goldens import GOLDENS


@pytest.fixture
def transformers():
  return quiet_transformers()


@pytest.fixture
def copy(tmp_path):
  """A function that copies a golden checkpoint, so that a test may change it."""
  return lambda name: Path(shutil.copytree(GOLDENS / name, tmp_path / name))
