"""What the tests of `huggingface` share: `transformers`, and golden directories to change."""

from pathlib import Path
import shutil

import pytest

from directories import quiet_transformers
from make_goldens import GOLDENS
from small_adapters import BASE, SHAPES, write_adapter


@pytest.fixture
def transformers():
  return quiet_transformers()


@pytest.fixture
def copy(tmp_path):
  """A function that copies a golden checkpoint, so that a test may change it."""
  return lambda name: Path(shutil.copytree(GOLDENS / name, tmp_path / name))


@pytest.fixture
def adapter(tmp_path):
  """An adapter that names the modules it changes, and its base."""
  write_adapter(tmp_path / 'adapter', SHAPES, base_model_name_or_path=str(BASE),
                target_modules=['q_proj', 'lm_head', 'embed_tokens'])
  return tmp_path / 'adapter'
