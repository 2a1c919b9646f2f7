"""Broken and hostile GGUF files are refused in one line that says why, before memory is taken."""

import os
import random
import struct
import tracemalloc

import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface.gguf import is_gguf
from bornbiased_jax.storage.huggingface.gguf_file import read_header
from directories import line_of, load_refusal
from make_goldens import GOLDENS
import small_gguf

pytest.importorskip('gguf')
ODD = (0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


@pytest.fixture
def file(tmp_path):
  return small_gguf.write(tmp_path / 'x.gguf', GOLDENS / 'llama_linear')


def is_refused(path):
  try:
    huggingface.load(path)
    return False
  except InputError as error:
    return bool(line_of(error, path))


def header_size(file):
  """All before the tensors, the last thing of which is an offset."""
  return file.read_bytes().rindex(b'blk.1.ffn') + 64


def text(words):
  return struct.pack('<Q', len(words)) + words


def header(tensors=0, entries=0, version=3, magic=b'GGUF'):
  return magic + struct.pack('<IQQ', version, tensors, entries)


def tensor(name=b'x', shape=(4, 4), kind=0, offset=0):
  sizes = struct.pack(f'<I{len(shape)}Q', len(shape), *shape)
  return text(name) + sizes + struct.pack('<IQ', kind, offset)


ALIGNED = text(b'general.alignment') + struct.pack('<I', 4)
LONG = b'\0' * 200
# Whole contents, of which none is a header.
CONTENTS = {
    'magic': header(magic=b'GGML'),
    'version': header(version=1),
    'big_endian': b'GGUF' + struct.pack('>IQQ', 3, 0, 0),
    'tensor_count': header(tensors=2**63),
    'text_long': header(entries=1) + struct.pack('<Q', 2**50),
    'value_type': header(entries=1) + text(b'a') + struct.pack('<I', 13),
    'array_long': header(entries=1) + text(b'a') + struct.pack('<IIQ', 9, 0, 2**60),
    'array_texts': header(entries=1) + text(b'a') + struct.pack('<IIQ', 9, 8, 2**60),
    'entry_twice': header(entries=2) + 2 * (text(b'a') + struct.pack('<IB', 0, 7)),
    'alignment': header(entries=1) + ALIGNED + struct.pack('<I', 0),
    'axes': header(1) + tensor(shape=(1,) * 5) + LONG,
    'no_rows': header(1) + tensor(shape=(4, 0)) + LONG,
    'shape_wraps': header(1) + tensor(shape=(2**32, 2**32)) + LONG,
    'offset': header(1) + tensor(offset=2**63) + LONG,
    'type_unknown': header(1) + tensor(kind=99) + LONG,
    'type_integers': header(1) + tensor(kind=26) + LONG,
    'blocks': header(1) + tensor(kind=2) + LONG,
    'twice': header(2) + 2 * tensor() + LONG,
}


@pytest.mark.parametrize('name', CONTENTS)
def test_a_broken_file(name, tmp_path):
  (tmp_path / 'x.gguf').write_bytes(CONTENTS[name])
  with pytest.raises(InputError) as error:
    read_header(tmp_path / 'x.gguf')
  line_of(error.value, tmp_path / 'x.gguf')


METADATA = {
    "general.architecture='mamba'": {'general.architecture': 'mamba'},
    'one part of several': {'split.count': 3},
    "general.type='adapter'": {'general.type': 'adapter'},
    'expert_count': {'llama.expert_count': 8},
    'attention.causal': {'llama.attention.causal': False},
    'logit_scale': {'llama.logit_scale': 0.5},
    'num_attention_heads=3': {'llama.attention.head_count': 3},
    'num_kv_heads=3': {'llama.attention.head_count_kv': 3},
    'attention.key_length=0': {'llama.attention.key_length': 0, 'llama.rope.dimension_count': 4},
    'attention.value_length=9': {'llama.attention.value_length': 9},
    'token_embd.weight is [96, 32]': {'llama.embedding_length': 64},
    'no tensor blk.2.': {'llama.block_count': 3},
    'block_count=2147483647': {'llama.block_count': 2**31 - 1},
    "block_count='two'": {'llama.block_count': 'two'},
    'partial_rotary_factor=0.5': {'llama.rope.dimension_count': 4},
    "rope_type='longrope'": {'llama.rope.scaling.type': 'longrope'},
    'rope.scaling.attn_factor': {'llama.rope.scaling.attn_factor': 1.2},
}


@pytest.mark.parametrize('named', METADATA)
def test_what_cannot_be_computed(named, tmp_path):
  def change(writer):
    for key, value in METADATA[named].items():
      for data in writer.kv_data:
        data.pop(key, None)
      {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
       bool: writer.add_bool}[type(value)](key, value)

  path = small_gguf.write(tmp_path / 'x.gguf', GOLDENS / 'llama_linear', change=change)
  assert named in load_refusal(path)


def test_a_tensor_whose_name_has_no_point(tmp_path):
  path = small_gguf.write(tmp_path / 'x.gguf', GOLDENS / 'llama_linear', change=lambda writer:
                          writer.add_tensor('weights', np.ones(4, np.float32)))
  assert "'weights' has no place in this model" in load_refusal(path)


def test_numbers_that_are_none(file):
  content = bytearray(file.read_bytes())
  content[-4:] = struct.pack('<f', np.nan)
  file.write_bytes(content)
  assert "'output_norm.weight' has NaN or infinities" in load_refusal(file)


def test_a_file_that_changes_between_two_reads_is_named(file):
  layers = huggingface.open_files(file).layers()
  content = file.read_bytes()
  file.write_bytes(content + b'\0')
  with pytest.raises(InputError, match=r'x.gguf has changed while it was read'):
    layers.read_block(0)
  file.write_bytes(content[:1000])
  with pytest.raises(InputError, match='it ends within tensor'):
    layers.read_block(1)
  file.unlink()
  with pytest.raises(InputError, match='is not a whole GGUF file'):
    layers.read_block(0)


def test_without_the_package_it_is_named(file, monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'gguf', None)
  with pytest.raises(InputError, match=r"pip install 'bornbiased_jax\[gguf\]'"):
    huggingface.load_config(file)


def test_a_file_that_was_cut_anywhere(file):
  content = file.read_bytes()
  places = [*range(0, header_size(file), 37), len(content) - 1, len(content) // 2]
  assert len(places) > 50
  for place in places:
    file.write_bytes(content[:place])
    load_refusal(file)


def test_damage_that_nobody_thought_of(file):
  """Numbers of the header are others. What loads is a network of the same tensors."""
  rng, content, end = random.Random(0), file.read_bytes(), header_size(file)
  huggingface.load(file)
  tracemalloc.start()
  try:
    refused = 0
    for _ in range(100):
      damaged, place = bytearray(content), rng.randrange(end)
      code = rng.choice('BIQ')
      struct.pack_into(f'<{code}', damaged, place, rng.choice(ODD) % 2**(8 * struct.calcsize(code)))
      file.write_bytes(damaged)
      refused += is_refused(file)
    assert 20 < refused < 100
    # The file has a fifth of a megabyte, and programs that shapes are computed with some.
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
  finally:
    tracemalloc.stop()


def test_a_pipe_is_not_opened(tmp_path):
  """To open one that nobody writes to would wait for ever."""
  os.mkfifo(tmp_path / 'x')
  assert not is_gguf(tmp_path / 'x')
