"""GGUF files of golden directories, by the package `gguf`: its names, its writer, its quantizing.

What else a converter does to the tensors is as in llama.cpp's.
"""

import json
import math
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

ARCHITECTURES = dict(gpt2='gpt2', llama='llama', mistral='llama', qwen2='qwen2', qwen3='qwen3',
                     gemma2='gemma2', gemma3_text='gemma3', phi3='phi3')


def write(path, directory, kind='F32', change=lambda writer: None, tensors=None, **metadata):
  """Writes the network of a directory of `transformers` as a GGUF file.

  Args:
    path: the file.
    directory: the directory, without shards.
    kind: name of the type of all matrices, or a function that makes what is stored of one, and
      its type.
    change: what to do with the writer before it writes.
    tensors: other tensors than those of the directory, by their names there.
    metadata: entries beside those that follow from config.json, or in their place, behind the
      architecture's name; None for none.
  """
  gguf = pytest.importorskip('gguf')
  config = json.loads((directory / 'config.json').read_text())
  architecture = ARCHITECTURES[config['model_type']]
  writer = gguf.GGUFWriter(path, architecture)
  _write_metadata(writer, config)
  _write_scaling(writer, config)
  for name, value in metadata.items():
    writer.kv_data[0].pop(f'{architecture}.{name}', None)
    if value is not None:
      add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
             bool: writer.add_bool, list: writer.add_array}[type(value)]
      add(f'{architecture}.{name}', value)
  tensors = load_file(directory / 'model.safetensors') if tensors is None else tensors
  number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
  names = gguf.get_tensor_name_map(number, 10)
  for name, values in tensors.items():
    stem, _, ending = name.rpartition('.')
    values = _converted(architecture, config, stem, values.astype(np.float32))
    _add(gguf, writer, f'{names.get_name(stem)}.{ending}', values, kind)
  change(writer)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def write_of_any(path, directory):
  """Writes the model of a directory of a family that has no forward pass here as a GGUF file."""
  gguf = pytest.importorskip('gguf')
  config = json.loads((directory / 'config.json').read_text())
  name = dict(deepseek_v3='deepseek2', gpt_oss='gpt-oss').get(*[config['model_type']] * 2)
  number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
  names, writer = gguf.get_tensor_name_map(number, 10), gguf.GGUFWriter(path, name)
  get = lambda *names: next(config[name] for name in names if name in config)
  writer.add_embedding_length(config['hidden_size'])
  writer.add_head_count(get('num_attention_heads', 'n_head'))
  if 'rms_norm_eps' in config:
    writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
  else:
    writer.add_layer_norm_eps(get('layer_norm_eps', 'layer_norm_epsilon'))
  tensors = load_file(directory / 'model.safetensors')
  for stem, ending, values in _converted_layers(config, _stacked(tensors)):
    writer.add_tensor(f'{names.get_name(stem)}.{ending}', np.ascontiguousarray(values))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def _stacked(tensors):
  """Matrices of experts that have names of their own, as one."""
  found = {}
  for name, values in tensors.items():
    stacked, is_one = re.subn(r'experts\.\d+\.', 'experts.', name)
    found.setdefault(stacked, []).append(values) if is_one else found.update({name: values})
  return {name: np.stack(each) if isinstance(each, list) else each for name, each in found.items()}


def _converted_layers(config, tensors):
  for name, values in tensors.items():
    stem, _, ending = name.removeprefix('transformer.').rpartition('.')
    if stem.endswith('kv_b_proj'):  # DeepSeek's, of keys and of values.
      parts = values.reshape(config['num_attention_heads'], -1, config['kv_lora_rank'])
      key, value = np.split(parts, [config['qk_nope_head_dim']], axis=1)
      yield stem.replace('kv_b', 'k_b'), ending, key.swapaxes(1, 2)
      yield stem.replace('kv_b', 'v_b'), ending, value
    elif stem.endswith('query_key_value'):  # BLOOM's, by head.
      by_head = values.reshape(config['n_head'], 3, -1, *values.shape[1:])
      yield stem, ending, by_head.swapaxes(0, 1).reshape(values.shape)
    elif ending.startswith('gate_up_proj'):  # gpt-oss's, which take turns.
      kind = 'bias' if ending.endswith('bias') else 'weight'
      for i, part in enumerate(('gate_proj', 'up_proj')):
        half = values[..., i::2]
        yield f'{stem}.{part}', kind, half if kind == 'bias' else half.swapaxes(1, 2)
    elif ending.startswith('down_proj'):
      is_bias = ending.endswith('bias')
      yield (f'{stem}.down_proj', 'bias' if is_bias else 'weight',
             values if is_bias else values.swapaxes(1, 2))
    elif ending in ('weight', 'bias'):
      yield stem, ending, values
    else:
      yield f'{stem}.{ending.removesuffix("_bias")}', 'bias', values


def _add(gguf, writer, name, values, kind):
  if callable(kind) and values.ndim > 1:
    stored, kind = kind(values)
  elif kind == 'F32' or values.ndim < 2:
    stored, kind = values, gguf.GGMLQuantizationType.F32
  else:
    kind = gguf.GGMLQuantizationType[kind]
    stored = gguf.quantize(values, kind)
  writer.add_tensor(name, stored, raw_dtype=kind)


def _write_metadata(writer, config):
  get = lambda *names: next((config[name] for name in names if config.get(name) is not None), None)
  heads = get('num_attention_heads', 'n_head')
  width = get('hidden_size', 'n_embd')
  writer.add_context_length(get('max_position_embeddings', 'n_positions'))
  writer.add_embedding_length(width)
  writer.add_block_count(get('num_hidden_layers', 'n_layer'))
  writer.add_feed_forward_length(get('intermediate_size', 'n_inner') or 4 * width)
  writer.add_head_count(heads)
  writer.add_file_type(0)
  writer.add_token_list([f't{i}' for i in range(96)])
  writer.add_token_scores([0.0] * 96)
  if config['model_type'] == 'gpt2':
    writer.add_layer_norm_eps(config['layer_norm_epsilon'])
    return
  writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
  writer.add_head_count_kv(get('num_key_value_heads'))
  head_size = get('head_dim') or width // heads
  rope = config['rope_parameters']
  rope = rope.get('full_attention', rope)
  writer.add_rope_dimension_count(int(head_size * rope.get('partial_rotary_factor', 1)))
  writer.add_rope_freq_base(rope['rope_theta'])
  if get('head_dim'):
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
  if config['model_type'] not in ('gemma2', 'gemma3_text'):
    writer.add_vocab_size(config['vocab_size'])
  if config['model_type'] in ('gemma2', 'gemma3_text', 'phi3'):
    writer.add_sliding_window(get('sliding_window') or 0)
  if get('attn_logit_softcapping'):
    writer.add_attn_logit_softcapping(config['attn_logit_softcapping'])
    writer.add_final_logit_softcapping(config['final_logit_softcapping'])


def _write_scaling(writer, config):
  rope = config.get('rope_parameters') or {}
  if 'sliding_attention' in rope:
    key = f'{writer.arch}.rope.freq_base_swa'
    writer.add_float32(key, rope['sliding_attention']['rope_theta'])
    writer.add_uint32(f'{writer.arch}.attention.sliding_window_pattern',
                      config['layer_types'].index('full_attention') + 1)
  rope = rope.get('full_attention', rope)
  if rope.get('rope_type') in ('linear', 'yarn'):
    writer.add_string(f'{writer.arch}.rope.scaling.type', rope['rope_type'])
    writer.add_rope_scaling_factor(rope['factor'])
  if rope.get('rope_type') == 'yarn':
    writer.add_rope_scaling_orig_ctx_len(rope['original_max_position_embeddings'])
    writer.add_rope_scaling_yarn_beta_fast(rope['beta_fast'])
    writer.add_rope_scaling_yarn_beta_slow(rope['beta_slow'])
  if rope.get('rope_type') == 'llama3':
    writer.add_tensor('rope_freqs.weight', _llama3_factors(rope, config['head_dim']))


def _llama3_factors(rope, head_size):
  """What each pair's frequency is divided by."""
  factors, length = [], rope['original_max_position_embeddings']
  low, high = rope['low_freq_factor'], rope['high_freq_factor']
  for pair in range(head_size // 2):
    wavelength = 2 * math.pi * rope['rope_theta'] ** (2 * pair / head_size)
    smooth = (length / wavelength - low) / (high - low)
    between = 1 / ((1 - smooth) / rope['factor'] + smooth)
    factors.append(1 if wavelength < length / high else
                   rope['factor'] if wavelength > length / low else between)
  return np.array(factors, np.float32)


def _converted(architecture, config, stem, values):
  """What a converter makes of a tensor."""
  if architecture == 'gpt2' and stem.endswith(('c_attn', 'c_proj', 'c_fc')) and values.ndim > 1:
    return values.T
  if architecture.startswith('gemma') and stem.endswith('norm'):
    return values + 1
  if architecture == 'llama' and stem.endswith(('q_proj', 'k_proj')):
    heads = config['num_attention_heads' if stem.endswith('q_proj') else 'num_key_value_heads']
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
  return values
