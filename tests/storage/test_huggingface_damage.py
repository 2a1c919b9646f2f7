"""Broken and hostile directories of `transformers` are refused in one line that says why."""

import json
import pickle
import random
import resource
import struct
import tracemalloc

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface.families import FAMILIES
from directories import edit_config, edit_tensors, line_of, load_refusal
from small_networks import logits

_LAYER = 'model.layers.1.'
_JSON, _WEIGHTS = 'config.json', 'model.safetensors'
HUGE = 2**31 - 1


def _remove(*names):
  return lambda path: [(path / name).unlink() for name in names]


def _write(name, content):
  content = content if isinstance(content, bytes) else content.encode()
  return lambda path: (path / name).write_bytes(content)


def _config(**changes):
  return lambda path: edit_config(path, **changes)


def _tensors(**changes):
  def change(tensors):
    for name, value in changes.items():
      name = _LAYER + name.replace('__', '.')
      tensors.pop(name) if value is None else tensors.update({name: value})

  return lambda path: edit_tensors(path, change)


def _index(content):
  return _write('model.safetensors.index.json', json.dumps(content))


def _safetensors(header, data=b''):
  header = header if isinstance(header, bytes) else json.dumps(header).encode()
  return _write(_WEIGHTS, struct.pack('<Q', len(header)) + header + data)


def _pickled(path):
  (path / _WEIGHTS).unlink()
  (path / 'pytorch_model.bin').write_bytes(pickle.dumps({}))


# What git leaves in place of a large file that it has not fetched.
POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n'
_F32 = dict(dtype='F32', shape=[1], data_offsets=[0, 4])
# How the golden directory 'qwen3_tied' is broken, as random damage hardly would, and the file or
# words that the message has.
BROKEN = {
    'config_deep': (_write(_JSON, '[' * 100_000), _JSON),
    'field_missing': (_config(hidden_size=...), _JSON),
    'product_huge': (_config(num_attention_heads=2**31 - 2, head_dim=2**31 - 2,
        hidden_size=2**31 - 2), _WEIGHTS),
    'odd_head': (_config(head_dim=15), _JSON),
    'rope_factor': (_config(rope_parameters=..., rope_scaling=dict(type='linear', factor='2')),
                    _JSON),
    'rope_no_factor': (_config(rope_parameters=dict(rope_type='linear')), _JSON),
    'rope_order': (_config(rope_parameters=dict(rope_type='llama3', factor=8.0,
        low_freq_factor=4.0, high_freq_factor=1.0)), _JSON),
    'rope_mscale': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, mscale=0.7,
        mscale_all_dim='x')), _JSON),
    'rope_truncate': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, truncate=None)),
                      _JSON),
    'rope_tiny': (_config(rope_parameters=dict(rope_type='yarn', factor=2.0, beta_slow=1e-310)),
                  _JSON),
    'rope_theta_tiny': (_config(rope_parameters=dict(rope_theta=1e-40)), _JSON),
    'rope_nested': (_config(rope_parameters=dict(full_attention=dict(rope_theta=1e6))), _JSON),
    'no_weights': (_remove(_WEIGHTS), ''),
    'pickle': (_pickled, 'pytorch_model.bin'),
    'header_offsets': (_safetensors(dict(a=dict(_F32, data_offsets=[0, 8])), b'8' * 8), _WEIGHTS),
    'header_overflow': (_safetensors(dict(a=dict(_F32, shape=[2**40, 2**40]))), _WEIGHTS),
    'tensor_missing': (_tensors(mlp__up_proj__weight=None), ''),
    'tensor_shape': (_tensors(mlp__up_proj__weight=np.ones((32, 48), np.float32)), _WEIGHTS),
    'tensor_double': (_tensors(mlp__up_proj__weight=np.ones((48, 32))), _WEIGHTS),
    'pointer': (_write(_WEIGHTS, POINTER), 'is a pointer of Git LFS'),
    'config_pointer': (_write(_JSON, POINTER), 'is a pointer of Git LFS'),
    'tensor_nan': (_tensors(mlp__up_proj__weight=np.full((48, 32), np.nan, np.float32)), _WEIGHTS),
    'tensor_unknown': (_tensors(self_attn__q_proj__bias=np.ones(64, np.float32)), _WEIGHTS),
    'tensor_twice': (lambda path: edit_tensors(path, lambda tensors: tensors.update(
        {'norm.weight': tensors['model.norm.weight']})), _WEIGHTS),
}
# The same of the golden directory 'llama_tied_sharded'.
_SHARD, _INDEX = 'model-00002-of-00002.safetensors', 'model.safetensors.index.json'
BROKEN_SHARDS = {
    'shard_missing': (_remove(_SHARD), _SHARD),
    'shard_long': (_index(dict(weight_map=dict(a='ä' * 200 + '.safetensors'))), _INDEX),
}


@pytest.mark.parametrize('golden, name', [
    *(('qwen3_tied', name) for name in BROKEN),
    *(('llama_tied_sharded', name) for name in BROKEN_SHARDS)])
def test_broken(golden, name, copy):
  path = copy(golden)
  break_it, file = (BROKEN | BROKEN_SHARDS)[name]
  break_it(path)
  assert file in load_refusal(path)


def test_no_directory(tmp_path):
  (tmp_path / 'file').touch()
  for name in ('nowhere', 'file'):
    assert 'config.json is missing' in load_refusal(tmp_path / name)


# What may stand in JSON, right or wrong, and names that entries may have.
ODD = (None, True, False, 0, -1, 1, 2, 4, 33, 96, HUGE, 2**31, 2**63, -2**63, 10**400, 0.0, -0.5,
       1e-46, 1e-5, 0.25, 1.0, 1e30, 1.7e308, float('nan'), float('inf'), '', '4', 'silu', 'linear',
       'yarn', 'F16', 'F64', 'BOOL', 'F4', 'a\nb', '\ud800', '../x', 'x' * 5000, [], [0], [1, 2],
       [-4, 4], [2**40, 2**40], [2**63, 2], ['a'] * 2000, [1] * 3000, {}, {'factor': 2.0},
       json.loads('[{"a":' * 8 + '1' + '}]' * 8), json.loads('[' * 900 + ']' * 900), *FAMILIES)
NAMES = sorted({entry for family in FAMILIES.values() for entry in family.fields.values()} | {
    'architectures', 'layer_types', 'rope_parameters', 'rope_scaling', 'rope_theta', 'rope_type',
    'type', 'factor', 'low_freq_factor', 'beta_fast', 'attention_factor', 'rotary_pct', 'truncate',
    'partial_rotary_factor', 'original_max_position_embeddings', 'quantization_config',
    '__metadata__', 'dtype', 'x' * 10**4, 'a\nb'})


def altered(rng, value):
  """The same JSON, but that something in it is gone, new, or something else."""
  if not (isinstance(value, dict | list) and value) or rng.random() < 0.1:
    return rng.choice(ODD)
  if isinstance(value, list):
    i = rng.randrange(len(value))
    return value[:i] + [altered(rng, value[i])] + value[i + 1:]
  name, kind = rng.choice(sorted(value)), rng.randrange(6)
  if kind == 0:
    return {each: value[each] for each in value if each != name}
  if kind == 1:
    return value | {rng.choice(NAMES): rng.choice(ODD)}
  return value | {name: altered(rng, value[name])}


def damaged(rng, content, is_json):
  """A file of which some bytes or JSON are others: of all of it, or of the header of weights."""
  if rng.random() < 0.25:
    start = rng.randrange(min(len(content), 2000))
    some = rng.choice((b'', b'9' * 50, b'{', b'"', b'\x00', b'\xff\xfe', b'e9'))
    end = rng.choice((start, start + 1, start + rng.randint(1, 9), len(content)))
    return content[:start] + some + content[end:]
  if is_json:
    return json.dumps(altered(rng, json.loads(content))).encode()
  end = 8 + struct.unpack('<Q', content[:8])[0]
  header = json.dumps(altered(rng, json.loads(content[8:end])))
  if rng.random() < 0.1:  # Names may stand there twice.
    header = header.rstrip('}') + '}, ' + header[1:]
  header = header.encode() + b' ' * (-len(header.encode()) % 8)
  said = rng.choice((len(header),) * 12 + (0, len(header) - 1, len(header) + 8, 2**40, 2**63))
  return struct.pack('<Q', said) + header + content[end:]


def load_or_none(path):
  """The parameters, or None if they are refused as they should be."""
  try:
    return huggingface.load(path)[1]
  except InputError as error:
    line_of(error, path)
    return None


@pytest.mark.parametrize('golden, file', [
    ('gpt2', _JSON), ('llama3_scaled', _JSON), ('mistral_window', _JSON), ('pythia', _JSON),
    ('gpt_neox_tied_fp16', _WEIGHTS), ('qwen3_tied', _WEIGHTS), ('llama_tied_sharded', _INDEX)])
def test_damage_that_nobody_thought_of(golden, file, copy):
  """What loads has each stored number once, and takes little memory. It is drawn from a seed."""
  rng, path = random.Random(f'{golden} {file}'), copy(golden)
  count_numbers = lambda params: sum(leaf.size for leaf in jax.tree.leaves(params))
  whole, stored = (path / file).read_bytes(), count_numbers(huggingface.load(path)[1])
  before, loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
  for _ in range(60):
    (path / file).write_bytes(damaged(rng, whole, file != _WEIGHTS))
    params = load_or_none(path)
    loaded += params is not None
    assert params is None or count_numbers(params) == stored
  assert 0 < loaded < 60
  # Kilobytes. Programs that shapes are computed with stay in memory; the files have 0.2 MB at most.
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 300_000


def test_a_whole_number_as_epsilon(copy):
  """What was found with other seeds: as an int this was too large for a program of JAX."""
  path = copy('qwen3_tied')
  edit_config(path, rms_norm_eps=2**63)
  config, params = huggingface.load(path)
  assert config.norm_epsilon == 2.0**63 and type(config.norm_epsilon) is float
  # It divides what the head reads by 3e9.
  assert 0 < np.abs(logits(config, params, np.array([[1, 2, 3]]))).max() < 1e-7


def test_sizes_that_no_file_backs_take_no_memory(copy):
  path = copy('gpt2')
  before = (path / _JSON).read_bytes()
  huggingface.load(path)
  tracemalloc.start()
  try:
    for name in ('vocab_size', 'n_embd', 'n_inner', 'n_layer', 'n_head', 'n_positions'):
      for value in (2**31, HUGE):
        edit_config(path, **{name: value})
        assert load_or_none(path) is None
      (path / _JSON).write_bytes(before)
    # Computing shapes takes a few megabytes. The smallest of these arrays would take 275 GB.
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
  finally:
    tracemalloc.stop()
