"""The door to Hugging Face: read and write directories of `transformers` checkpoints, without torch or pickle.

One table per family says how config.json and the tensors correspond to ours;
`load` and `save` both follow it, so the two cannot drift apart.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import functools
import json
import os
from pathlib import Path
import re
import shutil
from typing import NamedTuple
import uuid

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.initialization import init_params

_ACTIVATIONS = {'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu': 'gelu',
                'silu': 'silu', 'swish': 'silu', 'relu': 'relu', 'tanh': 'tanh'}
_STORED_ACTIVATIONS = {'gelu_tanh': 'gelu_new', 'gelu': 'gelu', 'silu': 'silu', 'relu': 'relu', 'tanh': 'tanh'}

# The kinds of value in config.json: what one must be, in words and as a test (a bool is no int here).
_KINDS = {
    'count': ('a whole number from 1 to 2147483647', lambda value: type(value) is int and 0 < value < 2**31),
    'count or null': ('a whole number from 1 to 2147483647, or null',
                      lambda value: value is None or type(value) is int and 0 < value < 2**31),
    'number': ('a positive number', lambda value: type(value) in (int, float) and 0 < value < 1e30),
    'flag': ('true or false', lambda value: type(value) is bool),
    'activation': (f'one of {", ".join(_ACTIVATIONS)}', lambda value: type(value) is str and value in _ACTIVATIONS),
}
_REQUIRED = object()

# How a module's weight is stored: the name of ours, whether the file has [out, in] where we have
# [in, out], and the views of the stored tensor (as [..., out]) that are our leaves.
class _Layout(NamedTuple):
  leaf: str
  transposed: bool = False
  split: Callable = lambda tensor, heads: [tensor]


def _split_by_head(tensor, heads):
  tensor = tensor.reshape(*tensor.shape[:-1], heads, 3, -1)
  return [tensor[..., i, :] for i in range(3)]


_TABLE = _Layout('')
_NORM = _Layout('scale')
_LINEAR = _Layout('kernel', transposed=True)
_CONV1D = _Layout('kernel')
_CONV1D_QKV = _Layout('kernel', split=lambda tensor, heads: np.split(tensor, 3, axis=-1))
_LINEAR_QKV_BY_HEAD = _Layout('kernel', transposed=True, split=_split_by_head)


class _Family(NamedTuple):
  """What `transformers` calls things.

  Args:
    architecture: its class.
    fields: entry of config.json → (fields of ModelConfig, kind, value where absent).
    constants: fields of ModelConfig that every member has.
    required: entry of config.json → (the only value supported, value where absent).
    modules: module → (layout, our modules); '{}' is the layer.
    head: the module of the LM head, the one outside the base model.
    rotary_fraction: of a head's channels, where config.json says nothing.
    whole_heads: hidden_size must be a multiple of num_attention_heads even if head_dim is given.
  """

  architecture: str
  fields: dict
  constants: dict
  required: dict
  modules: dict
  head: str = 'lm_head'
  rotary_fraction: float = 1.0
  whole_heads: bool = False


_ROPE_NAMES = {'rope_type': 'rope_type', 'type': 'rope_type', 'rope_theta': 'rope_theta',
               'rotary_emb_base': 'rope_theta', 'partial_rotary_factor': 'fraction', 'rotary_pct': 'fraction'}

_SIZES = {
    'vocab_size': ('vocab_size', 'count'),
    'hidden_size': ('width', 'count'),
    'intermediate_size': ('mlp_width', 'count'),
    'num_hidden_layers': ('num_layers', 'count'),
    'num_attention_heads': ('num_heads', 'count'),
    'max_position_embeddings': ('length', 'count'),
    'hidden_act': ('activation', 'activation'),
    'tie_word_embeddings': ('tied_head', 'flag', False),
}
_LLAMA = _Family(
    architecture='LlamaForCausalLM',
    fields=_SIZES | {
        'rms_norm_eps': ('norm_epsilon', 'number'),
        'num_key_value_heads': ('num_kv_heads', 'count or null', None),
        'head_dim': ('head_size', 'count or null', None),
        'attention_bias': ('qkv_bias output_bias', 'flag', False),
        'mlp_bias': ('mlp_bias', 'flag', False),
    },
    constants=dict(norm='rmsnorm', gated_mlp=True, positions='rope', qk_norm=False),
    required={},
    modules={
        'model.embed_tokens': (_TABLE, 'embedding'),
        'model.layers.{}.input_layernorm': (_NORM, 'blocks/attention_norm'),
        'model.layers.{}.self_attn.q_proj': (_LINEAR, 'blocks/query'),
        'model.layers.{}.self_attn.k_proj': (_LINEAR, 'blocks/key'),
        'model.layers.{}.self_attn.v_proj': (_LINEAR, 'blocks/value'),
        'model.layers.{}.self_attn.q_norm': (_NORM, 'blocks/query_norm'),
        'model.layers.{}.self_attn.k_norm': (_NORM, 'blocks/key_norm'),
        'model.layers.{}.self_attn.o_proj': (_LINEAR, 'blocks/output'),
        'model.layers.{}.post_attention_layernorm': (_NORM, 'blocks/mlp_norm'),
        'model.layers.{}.mlp.gate_proj': (_LINEAR, 'blocks/gate'),
        'model.layers.{}.mlp.up_proj': (_LINEAR, 'blocks/up'),
        'model.layers.{}.mlp.down_proj': (_LINEAR, 'blocks/down'),
        'model.norm': (_NORM, 'final_norm'),
        'lm_head': (_TABLE, 'head'),
    },
    whole_heads=True)


def _like_llama(architecture, dropped, fields, constants, required):
  kept = {name: field for name, field in _LLAMA.fields.items() if name not in dropped}
  return _LLAMA._replace(architecture=architecture, fields=kept | fields, constants=_LLAMA.constants | constants,
                         required=required, whole_heads=False)


# In the order in which `save` tries them.
_FAMILIES = {
    'gpt2': _Family(
        architecture='GPT2LMHeadModel',
        fields={
            'vocab_size': ('vocab_size', 'count'),
            'n_embd': ('width', 'count'),
            'n_inner': ('mlp_width', 'count or null', None),
            'n_layer': ('num_layers', 'count'),
            'n_head': ('num_heads', 'count'),
            'n_positions': ('length', 'count'),
            'activation_function': ('activation', 'activation'),
            'layer_norm_epsilon': ('norm_epsilon', 'number'),
            'tie_word_embeddings': ('tied_head', 'flag', True),
        },
        constants=dict(norm='layernorm', positions='learned'),
        required={'scale_attn_weights': (True, True), 'scale_attn_by_inverse_layer_idx': (False, False),
                  'add_cross_attention': (False, False)},
        modules={
            'transformer.wte': (_TABLE, 'embedding'),
            'transformer.wpe': (_TABLE, 'position_embedding'),
            'transformer.h.{}.ln_1': (_NORM, 'blocks/attention_norm'),
            'transformer.h.{}.attn.c_attn': (_CONV1D_QKV, 'blocks/query blocks/key blocks/value'),
            'transformer.h.{}.attn.c_proj': (_CONV1D, 'blocks/output'),
            'transformer.h.{}.ln_2': (_NORM, 'blocks/mlp_norm'),
            'transformer.h.{}.mlp.c_fc': (_CONV1D, 'blocks/up'),
            'transformer.h.{}.mlp.c_proj': (_CONV1D, 'blocks/down'),
            'transformer.ln_f': (_NORM, 'final_norm'),
            'lm_head': (_TABLE, 'head'),
        }),
    'llama': _LLAMA,
    'mistral': _like_llama(
        'MistralForCausalLM', ('attention_bias', 'mlp_bias'),
        {'num_key_value_heads': ('num_kv_heads', 'count or null', 8),
         'sliding_window': ('window', 'count or null', 4096)},
        dict(qkv_bias=False, output_bias=False, mlp_bias=False), {}),
    'qwen2': _like_llama(
        'Qwen2ForCausalLM', ('attention_bias', 'mlp_bias'),
        {'num_key_value_heads': ('num_kv_heads', 'count or null', 32)},
        dict(qkv_bias=True, output_bias=False, mlp_bias=False), {'use_sliding_window': (False, False)}),
    'qwen3': _like_llama(
        'Qwen3ForCausalLM', ('mlp_bias',),
        {'num_key_value_heads': ('num_kv_heads', 'count or null', 32), 'head_dim': ('head_size', 'count', 128)},
        dict(mlp_bias=False, qk_norm=True), {'use_sliding_window': (False, False)}),
    'gpt_neox': _Family(
        architecture='GPTNeoXForCausalLM',
        fields=_SIZES | {
            'layer_norm_eps': ('norm_epsilon', 'number'),
            'attention_bias': ('qkv_bias output_bias', 'flag', True),
        },
        constants=dict(norm='layernorm', positions='rope', mlp_bias=True),
        required={'use_parallel_residual': (False, True)},
        modules={
            'gpt_neox.embed_in': (_TABLE, 'embedding'),
            'gpt_neox.layers.{}.input_layernorm': (_NORM, 'blocks/attention_norm'),
            'gpt_neox.layers.{}.attention.query_key_value': (_LINEAR_QKV_BY_HEAD, 'blocks/query blocks/key blocks/value'),
            'gpt_neox.layers.{}.attention.dense': (_LINEAR, 'blocks/output'),
            'gpt_neox.layers.{}.post_attention_layernorm': (_NORM, 'blocks/mlp_norm'),
            'gpt_neox.layers.{}.mlp.dense_h_to_4h': (_LINEAR, 'blocks/up'),
            'gpt_neox.layers.{}.mlp.dense_4h_to_h': (_LINEAR, 'blocks/down'),
            'gpt_neox.final_layer_norm': (_NORM, 'final_norm'),
            'embed_out': (_TABLE, 'head'),
        },
        head='embed_out', rotary_fraction=0.25),
}
