"""Helpers for directories of `transformers`: compare two, compare logits, and change one."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from make_goldens import GOLDENS

TOLERANCE = 1e-4


def quiet_transformers():
  """The library `transformers`. Where it is missing, the test is skipped."""
  pytest.importorskip('torch')
  library = pytest.importorskip('transformers')
  library.logging.set_verbosity_error()
  library.logging.disable_progress_bar()
  return library


def assert_close(given, wanted):
  assert 1 < wanted.std() < 10, 'logits too small or large for the tolerance to mean something'
  np.testing.assert_allclose(given, wanted, rtol=0, atol=TOLERANCE)


def assert_equal(given, wanted):
  """Two networks, each as (config, params), are the same to the bit."""
  assert given[0] == wanted[0]
  jax.tree.map(np.testing.assert_array_equal, given[1], wanted[1])


def assert_same(path, other):
  """A path has the network of another one, or of a golden directory."""
  assert_equal(huggingface.load(path), huggingface.load(GOLDENS / other))


def line_of(error, path):
  """The message of an error, which is one line that begins with a path."""
  message = str(error)
  is_one_line = message.startswith(str(path)) and '\n' not in message and len(message) < 1000
  assert is_one_line, message[:1000]
  return message


def load_refusal(path):
  """The line with which a model is refused."""
  with pytest.raises(InputError) as error:
    huggingface.load(path)
  return line_of(error.value, path)


def assert_these_are_refused(path, stored, entries):
  """config.json is read as `stored`, but refused with other entries."""
  write_config(path, stored)
  huggingface.load_config(path)
  write_config(path, stored | entries)
  refusal(path)


def refusal(path):
  """The message with which config.json alone is refused."""
  with pytest.raises(InputError) as error:
    huggingface.load_config(path)
  return line_of(error.value, path / 'config.json')


def minimal_config(family, **entries):
  """The entries of config.json that must be there."""
  stored = dict(model_type=family, vocab_size=96, hidden_size=32, intermediate_size=48,
                num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=256)
  stored['layer_norm_eps' if family == 'gpt_neox' else 'rms_norm_eps'] = 1e-5
  if not family.startswith('gemma'):
    stored['hidden_act'] = 'silu'
  # Their defaults are too many heads for 4 to share.
  if family in ('mistral', 'qwen2', 'qwen3', 'mixtral', 'qwen2_moe'):
    stored['num_key_value_heads'] = 2
  return stored | entries


def lay(folder, *names):
  """Folders that look like models."""
  for name in names:
    (folder / name).mkdir(parents=True, exist_ok=True)
    write_config(folder / name, {})


def write_config(path, stored):
  (path / 'config.json').write_text(json.dumps(stored))


def edit_config(path, **changes):
  stored = json.loads((path / 'config.json').read_text())
  stored = {name: value for name, value in (stored | changes).items() if value is not ...}
  (path / 'config.json').write_text(json.dumps(stored))


def edit_tensors(path, change):
  tensors = load_file(path / 'model.safetensors')
  change(tensors)
  save_file(tensors, path / 'model.safetensors')
