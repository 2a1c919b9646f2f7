"""Damage that nobody thought of: a directory loads as a whole, or is refused in one line.

All damage is drawn from a seed, so that a failure comes again.
"""

import json
import random
import resource
import struct
import tracemalloc

import jax
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface import weights
from bornbiased_jax.storage.huggingface.families import FAMILIES
from directories import edit_config, logits

CONFIG, WEIGHTS, INDEX = 'config.json', weights.WHOLE, weights.INDEX
# Kilobytes by which all loads of a test may raise the largest memory of the process. The programs
# that shapes are computed with stay in memory, and the files have 0.2 MB at most.
MORE_MEMORY = 300_000
NAMES = sorted({entry for family in FAMILIES.values() for entry in family.fields.values()} | {
    'architectures', 'layer_types', 'rope_parameters', 'rope_scaling', 'rope_theta',
    'partial_rotary_factor', 'rotary_pct', 'rotary_emb_base', 'original_max_position_embeddings',
    'quantization_config', 'use_sliding_window', 'dtype', 'torch_dtype', '__proto__'})
ROPE_NAMES = ('rope_type', 'type', 'rope_theta', 'factor', 'low_freq_factor', 'high_freq_factor',
              'beta_fast', 'beta_slow', 'attention_factor', 'original_max_position_embeddings',
              'partial_rotary_factor', 'truncate', 'mscale')
DTYPES = ('F32', 'F16', 'BF16', 'F64', 'I8', 'BOOL', 'F8_E4M3', 'F4', 'C64', 'f32', '', 'X\n')
HUGE = 2**31 - 1


def nested(depth, value=None):
  for i in range(depth):
    value = [value] if i % 2 else {'a': value}
  return value


def some_value(rng):
  """Something that may stand in JSON, right or wrong."""
  return rng.choice((
      None, True, False, 0, -1, 1, 2, 3, 4, 8, 33, 96, HUGE, 2**31, 2**63, -2**63, 10**400, 0.0,
      -0.5, 1e-46, 1e-5, 0.25, 1.0, 2.5, 1e30, 1.7e308, float('nan'), float('inf'), '', '4', 'silu',
      'linear', 'yarn', 'llama3', 'x' * 5000, 'a\nb', '\ud800', '../x', [], [1, 2], ['a'] * 2000,
      {}, {'factor': 2.0}, nested(8), nested(900), *FAMILIES))


def damaged_bytes(rng, content):
  """Some bytes replaced, put in, taken out, or all after one taken away."""
  content = bytearray(content)
  for _ in range(rng.randint(1, 4)):
    place = rng.randrange(len(content))
    kind = rng.randrange(8)
    if kind == 0:
      del content[place:]
      break
    if kind == 1:
      del content[place:place + rng.randint(1, 9)]
    elif kind == 2:
      content[place:place] = rng.choice((b'9' * 50, b'{', b'"', b'\x00', b'\xff\xfe', b'e9', b'-'))
    else:
      content[place] = rng.randrange(256)
    content = content or bytearray(b' ')
  return bytes(content)


def damaged_config(rng, content):
  """Another config.json: in a fifth of all cases with other bytes, else with other entries."""
  if rng.random() < 0.2:
    return damaged_bytes(rng, content)
  stored = json.loads(content)
  for _ in range(rng.choice((1, 1, 1, 2, 3))):
    name = rng.choice((*stored, *NAMES))
    kind = rng.random()
    if kind < 0.1:
      stored.pop(name, None)
    elif kind < 0.3:
      rope = stored.setdefault('rope_parameters', {})
      if isinstance(rope, dict):
        rope[rng.choice(ROPE_NAMES)] = some_value(rng)
    else:
      stored[name] = some_value(rng)
  return json.dumps(stored).encode()


def some_shape(rng, shape):
  return rng.choice((
      [], [0], [-1, -1], shape[::-1], [1] * 3000 + shape, [2**40, 2**40], [2**63, 2], [2**64],
      [*shape, 0], [str(each) for each in shape], [float(each) for each in shape], None,
      {'0': shape}, nested(100), shape * 2, [shape[0] * 2, *shape[1:]], shape[0]))


def some_offsets(rng, offsets, size):
  begin, end = offsets
  return rng.choice((
      [end, begin], [begin, end + 4], [begin + 4, end], [0, size], [size, size + end - begin],
      [-4, end], [0, 2**64 - 1], [2**63, 2**63 + 4], [begin], [], None, [str(begin), end],
      [begin, begin], [float(begin), float(end)], offsets * 2))


def damaged_header(rng, header, size):
  """Another header of a safetensors file with `size` bytes of data, as JSON."""
  name = rng.choice([name for name in header if name != '__metadata__'])
  tensor = header[name]
  kind = rng.randrange(8)
  if kind == 0:
    tensor['dtype'] = rng.choice((*DTYPES, some_value(rng)))
  elif kind == 1:
    tensor['shape'] = some_shape(rng, tensor['shape'])
  elif kind == 2:
    tensor['data_offsets'] = some_offsets(rng, tensor['data_offsets'], size)
  elif kind == 3:
    tensor[rng.choice(('dtype', 'shape', 'data_offsets', 'more'))] = some_value(rng)
  elif kind == 4:
    header[rng.choice(('x', 'a\nb', 'x' * 10**4, *header))] = header.pop(name)
  elif kind == 5:
    # A second tensor of the same name, which a dict cannot hold.
    return json.dumps(header)[:-1] + f', {json.dumps(name)}: {json.dumps(tensor)}' + '}'
  elif kind == 6:
    header['__metadata__'] = rng.choice((some_value(rng), {'format': some_value(rng)}))
  else:
    header[name] = some_value(rng)
  return json.dumps(header)


def damaged_weights(rng, content):
  """Another safetensors file: other bytes of its head or data, or another header."""
  length = struct.unpack('<Q', content[:8])[0]
  kind = rng.random()
  if kind < 0.2:
    return damaged_bytes(rng, content[:8 + length]) + content[8 + length:]
  if kind < 0.3:
    return damaged_bytes(rng, content)
  made = damaged_header(rng, json.loads(content[8:8 + length]), len(content) - 8 - length).encode()
  made += b' ' * (-len(made) % 8)
  said = rng.choice((len(made),) * 12 + (0, 1, len(made) - 1, len(made) + 8, 2**40, 2**63))
  return struct.pack('<Q', said) + made + content[8 + length:]


def damaged_index(rng, content):
  """Another index: other bytes, or other names of shards and tensors."""
  if rng.random() < 0.3:
    return damaged_bytes(rng, content)
  stored = json.loads(content)
  shards = stored['weight_map']
  for name in rng.sample(sorted(shards), rng.randint(1, 3)):
    shards[name] = rng.choice((some_value(rng), 'model.safetensors', '../../etc/passwd',
                               'a/../b.safetensors', '.safetensors', *shards.values()))
  if rng.random() < 0.2:
    stored['weight_map'] = some_value(rng)
  return json.dumps(stored).encode()


def loads(path):
  """The parameters, or None if they are refused as they should be."""
  try:
    return huggingface.load(path)[1]
  except InputError as error:
    message = str(error)
    is_one_line = message.startswith(str(path)) and '\n' not in message and len(message) < 1000
    assert is_one_line, message[:1000]
    return None


def numbers(params):
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def outcomes(copy, golden, file, damage, count, seed):
  """Loads `count` damaged copies. What loads has each stored number once; the others are None."""
  rng, path = random.Random(seed), copy(golden)
  whole = (path / file).read_bytes()
  stored = numbers(huggingface.load(path)[1])
  before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
  for _ in range(count):
    (path / file).write_bytes(damage(rng, whole))
    found.append(loads(path))
    assert found[-1] is None or numbers(found[-1]) == stored
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + MORE_MEMORY
  return [params is not None for params in found]


@pytest.mark.parametrize('golden', ['gpt2', 'llama3_scaled', 'mistral_window', 'pythia',
                                    'qwen3_tied'])
def test_damaged_configurations(golden, copy):
  made = outcomes(copy, golden, CONFIG, damaged_config, 80, f'config {golden}')
  assert 0 < sum(made) < 80


@pytest.mark.parametrize('golden', ['gpt_neox_tied_fp16', 'qwen2_bf16', 'qwen3_tied'])
def test_damaged_weights(golden, copy):
  made = outcomes(copy, golden, WEIGHTS, damaged_weights, 100, f'weights {golden}')
  assert 0 < sum(made) < 100


def test_damaged_indices(copy):
  made = outcomes(copy, 'llama_tied_sharded', INDEX, damaged_index, 50, 'index')
  assert 0 < sum(made) < 50


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
  before = (path / CONFIG).read_bytes()
  huggingface.load(path)
  tracemalloc.start()
  try:
    for name in ('vocab_size', 'n_embd', 'n_inner', 'n_layer', 'n_head', 'n_positions'):
      for value in (2**31, HUGE):
        edit_config(path, **{name: value})
        assert loads(path) is None
      (path / CONFIG).write_bytes(before)
    # Computing shapes takes a few megabytes. The smallest of these arrays would take 275 GB.
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
  finally:
    tracemalloc.stop()
