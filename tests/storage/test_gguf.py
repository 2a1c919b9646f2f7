"""GGUF files give the network of the directory that they were made from, or of its rounding."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax import configs, storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface
from bornbiased_jax.storage.huggingface.gguf_file import read_header
from directories import assert_close, assert_same, edit_config
import small_gguf
from small_networks import logits, trained

gguf = pytest.importorskip('gguf')
# What GGUF files cannot say of the golden directories, and what they say instead.
DIRECTORIES = {
    'gpt2': {}, 'qwen2_bf16': {}, 'qwen3_tied': {}, 'phi3': {}, 'llama_linear': {},
    'qwen2_yarn': {}, 'mistral_window': dict(sliding_window=None),
    'gemma2': dict(query_pre_attn_scalar=12), 'gemma3_bf16': dict(query_pre_attn_scalar=12),
    'llama3_scaled': dict(head_dim=8, rope_parameters=dict(
        rope_type='llama3', rope_theta=50000.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=8192)),
}
PRESETS = {'tiny_llama2': {}, 'tiny_gpt2': dict(positions='learned')}
LINEAR = dict(rope_type='linear', factor=4.0)
TOKENS = np.random.default_rng(0).integers(96, size=(2, 24))
KINDS = sorted(kind.name for kind in (*gguf.quants._type_traits, gguf.GGMLQuantizationType.F16,
                                      gguf.GGMLQuantizationType.F32))


@pytest.fixture
def directory(copy):
  """A function that copies a golden directory, of which a GGUF file can say all."""
  def change(name):
    path = copy(name)
    edit_config(path, **DIRECTORIES[name])
    return path

  return change


def round_matrices(path, change):
  """Changes all matrices of a directory, which are then stored as float32."""
  tensors = load_file(path / 'model.safetensors')
  save_file({name: change(values.astype(np.float32)) if values.ndim > 1 else
             values.astype(np.float32) for name, values in tensors.items()},
            path / 'model.safetensors')


@pytest.mark.parametrize('name, kind', [
    *((name, 'F32') for name in DIRECTORIES), ('gpt2', 'F16'), ('llama3_scaled', 'F16'),
    ('gpt2', 'BF16'), ('llama3_scaled', 'BF16')])
def test_a_file_is_the_network_of_its_directory(name, kind, directory, tmp_path):
  path = directory(name)
  kinds = gguf.GGMLQuantizationType
  round_matrices(path, lambda x: gguf.dequantize(gguf.quantize(x, kinds[kind]), kinds[kind]))
  assert_same(small_gguf.write(tmp_path / 'x.gguf', path, kind), path)


# One of each kind. transformers knows no Mistral among these files: there they are Llamas.
@pytest.mark.parametrize('name', ['gpt2', 'llama_linear', 'qwen2_bf16', 'qwen3_tied', 'phi3',
                                  'gemma2', 'gemma3_bf16'])
def test_transformers_reads_the_same(name, directory, transformers, tmp_path):
  """It takes names and permutations from the file, and here all else from config.json."""
  import torch
  pytest.importorskip('accelerate')
  path = directory(name)
  small_gguf.write(path / 'x.gguf', path)
  config = transformers.AutoConfig.from_pretrained(path)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      path, gguf_file='x.gguf', config=config, dtype=torch.float32, attn_implementation='eager')
  with torch.no_grad():
    wanted = model.eval()(torch.from_numpy(TOKENS)).logits.numpy()
  assert_close(logits(*huggingface.load(path / 'x.gguf'), TOKENS), wanted)


# Quantization


@pytest.fixture
def model(tmp_path):
  """A function that makes a directory with a model whose rows are as long as blocks ask for."""
  def make(seed=1, preset='tiny_llama2'):
    config = configs.get(preset, width=256, mlp_width=256, num_heads=4, vocab_size=96,
                         num_layers=2, **PRESETS[preset])
    huggingface.save(tmp_path / f'{preset}{seed}', config, trained(config, seed))
    return tmp_path / f'{preset}{seed}'

  return make


def random_blocks(kind):
  """A function that makes a matrix of a type. No two of these bytes are a huge half-precision."""
  def make(values):
    shape = gguf.quants.quant_shape_to_byte_shape(values.shape, kind)
    return np.random.default_rng(shape).integers(0, 0x38, shape).astype(np.uint8), kind

  return make


@pytest.mark.parametrize('name', ['Q8_0', 'Q4_0', 'Q4_K', 'IQ4_XS'])
@pytest.mark.parametrize('preset', PRESETS)
def test_a_quantized_file_is_the_network_of_its_dequantized_matrices(preset, name, model, tmp_path):
  path, kind = model(preset=preset), gguf.GGMLQuantizationType[name]
  make = random_blocks(kind) if name.endswith(('K', 'S')) else (
      lambda values: (gguf.quantize(values, kind), kind))
  rounded = lambda values: (gguf.dequantize(*make(values)), gguf.GGMLQuantizationType.F32)
  assert_same(small_gguf.write(tmp_path / 'quantized.gguf', path, make),
              small_gguf.write(tmp_path / 'rounded.gguf', path, rounded))


@pytest.mark.parametrize('name', KINDS)
def test_every_type_is_dequantized(name, tmp_path):
  kind = gguf.GGMLQuantizationType[name]
  stored, _ = random_blocks(kind)(np.empty((40, 256)))
  writer = gguf.GGUFWriter(tmp_path / 'x.gguf', 'llama')
  writer.add_tensor('matrix', stored, raw_dtype=kind)
  writer.add_tensor('vector', stored[5], raw_dtype=kind)
  writer.add_tensor('experts', stored.reshape(5, 8, -1), raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  matrix, vector, experts = read_header(tmp_path / 'x.gguf')[1].values()
  wanted = gguf.dequantize(stored, kind)
  assert matrix.shape == [40, 256] and wanted.any()
  np.testing.assert_array_equal(matrix.read(), wanted)
  np.testing.assert_array_equal(matrix.read(3, 7), wanted[3:7])
  np.testing.assert_array_equal(vector.read(), wanted[5])
  np.testing.assert_array_equal(experts.read(2, 4), wanted.reshape(5, 8, 256)[2:4])


# Names and layers


def test_a_file_is_known_by_its_beginning(directory, tmp_path):
  """Ollama names its files by their digests; a folder of a GGUF file says to give the file."""
  path, folder = directory('qwen3_tied'), tmp_path / 'downloaded'
  folder.mkdir()
  file = small_gguf.write(folder / 'x.gguf', path)
  with pytest.raises(InputError, match=f'holds models: x.gguf; give one of them, such as {file}'):
    storage.open(str(folder))
  (folder / 'config.json').write_bytes((path / 'config.json').read_bytes())
  with pytest.raises(InputError, match=f'give one of its GGUF files, such as {file}'):
    huggingface.load(folder)
  for name in (file, folder / 'sha256-1a2b'):
    model = storage.open(str(file.rename(name)))
    assert model.config == huggingface.load_config(path)
    assert_same(model.files, path)


@pytest.mark.parametrize('name', ['gpt2', 'llama_linear', 'gemma2'])
def test_layers_of_a_file_are_those_of_its_directory(name, directory, tmp_path, monkeypatch):
  path = directory(name)
  monkeypatch.setattr('bornbiased_jax.storage.huggingface.gguf_file.ROWS', 7)
  files = small_gguf.write(tmp_path / 'x.gguf', path), path
  given, wanted = (huggingface.open_files(each).layers() for each in files)
  assert given.shapes == wanted.shapes
  for i in range(given.config.num_layers):
    jax.tree.map(np.testing.assert_array_equal, given.read_block(i), wanted.read_block(i))
  for leaf in given.outside_blocks():
    np.testing.assert_array_equal(given.read_rows(leaf, 2, 19), wanted.read_rows(leaf, 2, 19))


# What files say


@pytest.mark.parametrize('name, layers, divisor', [('gemma2', 46, 8), ('gemma3_bf16', 62, 8),
                                                   ('gemma2', 3, None), ('gemma3_bf16', 46, None)])
def test_gemma_of_27b_divides_by_the_width_over_the_heads(name, layers, divisor, directory,
                                                          tmp_path):
  path = directory(name)
  edit_config(path, num_hidden_layers=layers)
  config = huggingface.load_config(small_gguf.write(tmp_path / 'x.gguf', path))
  assert config.score_divisor == divisor


def test_the_head_is_the_embedding_unless_there_is_one(directory, tmp_path):
  path = directory('qwen3_tied')
  tensors = load_file(path / 'model.safetensors')
  head = {'lm_head.weight': 2 * tensors['model.embed_tokens.weight']}
  file = small_gguf.write(tmp_path / 'x.gguf', path, tensors=tensors | head)
  config, params = huggingface.load(file)
  assert not config.tied_head and huggingface.load_config(path).tied_head
  np.testing.assert_array_equal(params['head'], head['lm_head.weight'])


@pytest.mark.parametrize('biased', ['qkv', 'o', 'mlp'])
def test_each_bias_is_seen_by_itself(biased, copy, tmp_path):
  """config.json of Llama has one entry for those of attention; llama.cpp looks for each."""
  path = copy('llama_linear')
  edit_config(path, attention_bias=True, mlp_bias=True)
  tensors = load_file(path / 'model.safetensors')
  of = dict(qkv='qkv', o='o', mlp=('gate', 'up', 'down'))[biased]
  for name, values in list(tensors.items()):
    stem = name.removesuffix('.weight')
    if stem.endswith('_proj'):
      is_one = stem.rpartition('.')[2].removesuffix('_proj') in of
      tensors[f'{stem}.bias'] = np.float32(is_one) * values[:, 0]
  save_file(tensors, path / 'model.safetensors')
  kept = {name: values for name, values in tensors.items() if values.any()}
  config, params = huggingface.load(small_gguf.write(tmp_path / 'x.gguf', path, tensors=kept))
  assert (config.qkv_bias, config.output_bias, config.mlp_bias) == tuple(
      biased == each for each in ('qkv', 'o', 'mlp'))
  found, wanted = (each['blocks'] for each in (params, huggingface.load(path)[1]))
  for module, leaves in found.items():
    jax.tree.map(np.testing.assert_array_equal, leaves,
                 {name: wanted[module][name] for name in leaves})


# By llama.cpp's loader it is linear without a type; without a factor, or with 0, there is none.
@pytest.mark.parametrize('rope, entries', [
    (LINEAR, {'rope.scaling.factor': 4.0}), (LINEAR, {'rope.scale_linear': 4.0}),
    (LINEAR, {'rope.scale_linear': 8.0, 'rope.scaling.factor': 4.0}),
    ({}, {'rope.scaling.type': 'none', 'rope.scaling.factor': 4.0}),
    ({}, {'rope.scaling.type': 'linear'}), ({}, {'rope.scaling.factor': 0.0}),
    ({}, {'rope.scaling.type': 'yarn', 'rope.scaling.factor': 1.0}),
], ids=str)
def test_scaling_of_rope_by_the_defaults_of_its_loader(rope, entries, copy, tmp_path):
  path = copy('llama_linear')
  edit_config(path, rope_scaling=None, rope_parameters=dict(rope_type='default', rope_theta=1e4))
  file = small_gguf.write(tmp_path / 'x.gguf', path, **entries)
  edit_config(path, rope_parameters=dict(rope_type='default', rope_theta=1e4) | rope)
  assert huggingface.load_config(file) == huggingface.load_config(path)


@pytest.mark.parametrize('name', ['attention.head_count_kv', 'attention.head_count',
                                  'feed_forward_length'])
def test_a_number_for_each_layer_is_one_if_all_are_the_same(name, copy, tmp_path):
  path = copy('llama_linear')
  number = dict(zip(('attention.head_count_kv', 'attention.head_count', 'feed_forward_length'),
                    (2, 4, 48), strict=True))[name]
  write = lambda *numbers: small_gguf.write(tmp_path / 'x.gguf', path, **{name: list(numbers)})
  assert_same(write(number, number), path)
  for wrong in ((number, number + 1), (number,), (number,) * 3):
    with pytest.raises(InputError, match=f"'{name}'=.* is not supported: one number for all"):
      huggingface.load(write(*wrong))


@pytest.mark.parametrize('name, lacking, changes', [
    ('llama_linear', 'rope.freq_base', dict(rope_parameters=dict(
        rope_type='linear', factor=2.5, rope_theta=1e4))),
    ('llama_linear', 'rope.dimension_count', {}), ('qwen2_bf16', 'attention.head_count_kv', dict(
        num_key_value_heads=4)),
    ('gemma2', 'attn_logit_softcapping', dict(attn_logit_softcapping=50.0)),
    ('gemma2', 'final_logit_softcapping', dict(final_logit_softcapping=30.0)),
    ('gemma2', 'attention.sliding_window', dict(sliding_window=4096))])
def test_what_is_not_said_is_what_its_loader_takes(name, lacking, changes, directory, tmp_path):
  """These are the values of llama.cpp's load_hparams."""
  path = directory(name)
  file = small_gguf.write(tmp_path / 'x.gguf', path, **{lacking: None})
  edit_config(path, **changes)
  assert huggingface.load_config(file) == huggingface.load_config(path)


@pytest.mark.parametrize('name, value', [
    ('expert_shared_count', 0), ('nextn_predict_layers', 0), ('use_parallel_residual', False),
    ('logit_scale', 0.0), ('attention.scale', 0.0), ('attention.clamp_kqv', 0.0),
    ('attention.sliding_window', 0), ('rope.scaling.attn_factor', 1.0)])
def test_what_says_that_a_model_has_none_of_it_changes_nothing(name, value, copy, tmp_path):
  """llama.cpp (b11739) computes the same with these as without them."""
  path = copy('llama_linear')
  file = small_gguf.write(tmp_path / 'x.gguf', path, **{name: value})
  assert huggingface.load_config(file) == huggingface.load_config(path)


@pytest.mark.parametrize('window, pattern, windows', [
    (5, [True, False, True], (5, None, 5)), (5, 2, (5, None, 5)), (5, None, (5, 5, 5)),
    (None, 2, ()), (0, [True, False, True], (5, None, 5)[:0])], ids=str)
def test_windows_of_gemma_3(window, pattern, windows, directory, tmp_path):
  """llama.cpp reads their layers as a period, 6 if it is not given, or one by one."""
  entries = {'attention.sliding_window': window, 'attention.sliding_window_pattern': pattern}
  file = small_gguf.write(tmp_path / 'x.gguf', directory('gemma3_bf16'), **entries)
  assert huggingface.load_config(file).windows == windows


@pytest.mark.parametrize('factor, head_size', [(8.0, 128), (32.0, 64)])
def test_scaling_of_llama_3_is_known_by_its_factors(factor, head_size, copy, tmp_path):
  path = copy('llama3_scaled')
  rope = dict(rope_type='llama3', rope_theta=500000.0, factor=factor, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=8192)
  edit_config(path, head_dim=head_size, rope_parameters=rope)
  file = small_gguf.write(tmp_path / 'x.gguf', path)
  assert huggingface.load_config(file) == huggingface.load_config(path)
  edit_config(path, rope_parameters=rope | dict(high_freq_factor=5.0))
  with pytest.raises(InputError, match=r'rope_freqs.weight is not as of Llama 3'):
    huggingface.load_config(small_gguf.write(tmp_path / 'x.gguf', path))
