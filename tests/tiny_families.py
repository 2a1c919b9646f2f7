"""Tiny random models of the causal language models that transformers knows."""

import contextlib
import dataclasses
import logging

import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
CONFIG_MAPPING = transformers.models.auto.configuration_auto.CONFIG_MAPPING
NAMES = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 96
MOST_PARAMETERS = 8 * 10**6
# Whatever a configuration calls its sizes.
_SIZES = {
    32: 'hidden_size d_model n_embd n_embed dim embed_dim emb_dim model_dim dim_model'
        ' embedding_size attention_hidden_size embedding_dim hidden_size_global',
    4: 'num_attention_heads n_head n_heads num_heads encoder_attention_heads attention_heads'
       ' decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads'
       ' num_experts num_local_experts n_routed_experts moe_num_experts qk_rope_head_dim'
       ' mamba_n_heads n_mamba_heads rotary_dim',
    3: 'num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers'
       ' num_decoder_layers num_encoder_layers',
    2: 'num_key_value_heads num_kv_heads n_head_kv num_experts_per_tok moe_k moe_topk'
       ' num_experts_per_token top_k_experts num_codebooks',
    1: 'n_group topk_group first_k_dense_replace num_dense_layers moe_layer_start_index',
    40: 'intermediate_size n_inner ffn_dim d_ff ffn_hidden_size encoder_ffn_dim decoder_ffn_dim'
        ' dim_ff inner_dim d_inner',
    24: 'moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size'
        ' moe_shared_expert_intermediate_size intermediate_size_mlp expert_intermediate_size'
        ' shared_intermediate_size prefix_dense_intermediate_size dense_intermediate_size',
    VOCABULARY: 'vocab_size vocab_size_per_layer_input unpadded_vocab_size',
    8: 'head_dim attention_head_dim d_kv dim_head kv_channels global_head_dim qk_nope_head_dim'
       ' hidden_size_per_layer_input d_head attention_head_size num_buckets index_head_dim'
       ' mamba_d_state',
    16: 'mamba_d_head',
    # No sum of a few ranks is the width, as matrices are told by their shapes.
    14: 'q_lora_rank',
    12: 'kv_lora_rank',
    6: 'v_head_dim',
    64: 'max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length'
        ' max_target_positions pronunciation_vocab_size shape_vocab_size'
        ' encoder_hash_byte_group_vocab',
}
SIZES = {name: size for size, names in _SIZES.items() for name in names.split()}
_KINDS = ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention']
# What a family needs besides.
SETTINGS = {
    'bamba': {'attn_layer_indices': [1]},
    'deepseek_v2': {'topk_method': 'greedy'},
    'dory': {'n_input_layers': 1, 'n_recurrent_layers': 1, 'n_output_layers': 1},
    'dots1': {'n_shared_experts': 1},
    'gemma3n_text': {'num_hidden_layers': 4, 'num_kv_shared_layers': 2, 'layer_types': _KINDS,
                     'activation_sparsity_pattern': None},
    'gemma4_text': {'num_hidden_layers': 4, 'num_kv_shared_layers': 0, 'layer_types': _KINDS,
                    'global_head_dim': 12},
    'got_ocr2_vision': {'output_channels': 4, 'mlp_dim': 40},
    'gpt_neo': {'attention_types': [[['global', 'local'], 2]], 'num_layers': 4},
    'granitemoehybrid': {'layer_types': ['mamba', 'attention', 'mamba']},
    'jamba': {'attn_layer_offset': 1, 'attn_layer_period': 2},
    'laguna': {'num_attention_heads_per_layer': [4, 4, 4]},
    'lfm2_moe': {'layer_types': ['conv', 'full_attention', 'full_attention']},
    'longcat_flash': {'head_dim': 4, 'qk_head_dim': 12},
    'mamba2': {'head_dim': 16, 'n_groups': 2},
    'moshi': {'audio_vocab_size': VOCABULARY},
    'phi4_multimodal_audio': {'ext_pw_out_channel': 32, 'nemo_conv_channels': 16,
                              'depthwise_separable_out_channel': 32, 'num_blocks': 1},
    'phi4_multimodal_vision': {'intermediate_size': 32},
    'qwen3_5_text': {'full_attention_interval': 2},
    'qwen3_5_moe_text': {'full_attention_interval': 2},
    'qwen3_next': {'full_attention_interval': 2},
    'qwen3_5': {'full_attention_interval': 2},
    'qwen3_5_moe': {'full_attention_interval': 2},
    'qwen4_exp_text': {'full_attention_interval': 2, 'indexer_n_heads': 2, 'indexer_kv_heads': 1,
                       'indexer_head_dim': 8, 'indexer_budget': 8, 'indexer_compress_ratio': 2},
    'reformer': {'axial_pos_embds_dim': (16, 16), 'axial_pos_shape': (8, 8),
                 'attn_layers': ['local', 'lsh', 'local']},
    'xmod': {'default_language': 'en_XX'},
    'zamba2': {'num_hidden_layers': 4, 'layers_block_type': ['linear_attention', 'hybrid'] * 2},
    'zaya': {'num_experts_per_tok': 1},
}


@contextlib.contextmanager
def quiet():
  """Without the many warnings of libraries. Tests that follow read their own."""
  logging.disable(logging.WARNING)
  try:
    yield
  finally:
    logging.disable(logging.NOTSET)


@quiet()
def make(family: str, folder: str) -> type:
  """Saves a model of a family with random weights, biases and gains; returns its class."""
  kind = getattr(transformers, NAMES[family])
  config_type = CONFIG_MAPPING[family]
  if kind.config_class is not None and not issubclass(config_type, kind.config_class):
    config_type = kind.config_class
  config = config_type(**_settings(config_type) | SETTINGS.get(family, {}))
  config.use_cache, config.is_decoder = False, True
  with torch.device('meta'):
    size = sum(x.numel() for x in kind(config).parameters())
  if size > MOST_PARAMETERS:
    raise ValueError(f'{size:,} parameters')
  torch.manual_seed(0)
  model = kind(config).float()
  with torch.no_grad():
    for name, x in model.named_parameters():
      if x.ndim >= 2:
        x.normal_(std=.2 if x.ndim < 4 else .05)
      elif x.ndim == 1 and name.endswith('bias'):
        x.normal_(std=.1)
      elif x.ndim == 1 and 'norm' in name:
        x.add_(.2 * torch.randn(x.shape))
  model.save_pretrained(folder)
  return kind


def _settings(config_type):
  names = {field.name: field.default for field in dataclasses.fields(config_type)}
  renamed = getattr(config_type, 'attribute_map', {})
  found = {}
  for name, size in SIZES.items():
    name = renamed.get(name, name)
    if name in names and (names[name] is None or type(names[name]) is int and names[name] > 0):
      found[name] = size
  if 'kv_lora_rank' in names:  # Latent attention has no fewer heads for keys and values.
    found |= {'num_key_value_heads': 4}
    found.pop('head_dim', None)
  for name, value in names.items():
    if name.endswith('token_id') and isinstance(value, (int, list)):
      found[name] = [1] if isinstance(value, list) else min(value, 1)
  default = config_type() if config_type.sub_configs else None
  for name in config_type.sub_configs:
    if name in names and getattr(default, name, None) is not None:
      inner = type(getattr(default, name))
      found[name] = (_settings(inner) | SETTINGS.get(inner.model_type, {})
                     | {'model_type': inner.model_type})
  return found
