"""The names that `transformers` has for our fields and modules: one row per family, read both ways.

`leaves.groups` says which tensors hold which of our parameters by such a row.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from bornbiased_jax.storage.huggingface.positions import (
  ALL_BUT_EACH_2ND,
  ALL_BUT_EACH_4TH,
  BY_PATTERN,
  EVERY_LAYER,
  NO_WINDOWS,
  SWITCHED,
  RopeRules,
  WindowRules,
)


def split_columns(tensor, sizes, heads=None):
  """The parts of a fused [..., out], one after another."""
  return np.split(tensor, np.cumsum(sizes)[:-1], axis=-1)


def _split_heads(tensor, sizes, heads):
  tensor = tensor.reshape(*tensor.shape[:-1], heads, 3, -1)
  return [tensor[..., i, :] for i in range(3)]


class Family(NamedTuple):
  """What one family of `transformers` calls our fields and modules."""

  architecture: str
  fields: dict  # field of ModelConfig → entry of config.json
  defaults: dict  # entry of config.json that may be missing → its value then
  constants: dict  # fields of ModelConfig that are the same in the whole family
  modules: dict  # our module, or several that they fuse into one → theirs; '{}' is the layer
  base: str  # prefix of their modules except the head; checkpoints may lack it
  head: str = 'lm_head'
  transposed: bool = True  # their weights are [out, in]; our kernels are [in, out]
  split: Callable = split_columns  # function from a fused [..., out] to views of its parts
  whole_heads: bool = False  # heads must divide hidden_size even if head_dim is given
  rope: RopeRules = RopeRules()
  windows: WindowRules = NO_WINDOWS
  gain_less: float = 0.0  # what their norms add to the stored weight
  never_null: tuple[str, ...] = ()  # fields whose entries may be null in other families
  only: dict = {}  # entry of config.json → the values that our Transformer can compute
  aliases: dict = {}  # second name of an entry, which goes before the first → the first
  init_scheme: str = 'plain'  # of ModelConfig, by which `transformers` draws weights


_QKV = 'blocks/query blocks/key blocks/value'
_COMMON = dict(
    vocab_size='vocab_size', width='hidden_size', mlp_width='intermediate_size',
    activation='hidden_act', num_layers='num_hidden_layers', num_heads='num_attention_heads',
    length='max_position_embeddings', tied_head='tie_word_embeddings')
_GPT2 = Family(
    architecture='GPT2LMHeadModel',
    fields=dict(vocab_size='vocab_size', width='n_embd', mlp_width='n_inner',
                activation='activation_function', num_layers='n_layer', num_heads='n_head',
                length='n_positions', tied_head='tie_word_embeddings',
                norm_epsilon='layer_norm_epsilon'),
    defaults=dict(n_inner=None, tie_word_embeddings=True),
    constants=dict(norm='layernorm', gated_mlp=False, positions='learned'),
    modules={'embedding': 'wte', 'position_embedding': 'wpe', 'final_norm': 'ln_f',
             'blocks/attention_norm': 'h.{}.ln_1', _QKV: 'h.{}.attn.c_attn',
             'blocks/output': 'h.{}.attn.c_proj', 'blocks/mlp_norm': 'h.{}.ln_2',
             'blocks/up': 'h.{}.mlp.c_fc', 'blocks/down': 'h.{}.mlp.c_proj'},
    base='transformer.', transposed=False, init_scheme='gpt2',
    aliases=dict(hidden_size='n_embd', max_position_embeddings='n_positions',
                 num_attention_heads='n_head', num_hidden_layers='n_layer'))
_GPT_NEOX = Family(
    architecture='GPTNeoXForCausalLM',
    fields=_COMMON | dict(norm_epsilon='layer_norm_eps', qkv_bias='attention_bias',
                          output_bias='attention_bias',
                          parallel_residual='use_parallel_residual'),
    defaults=dict(attention_bias=True, tie_word_embeddings=False, use_parallel_residual=True),
    constants=dict(norm='layernorm', gated_mlp=False, positions='rope'),
    modules={'embedding': 'embed_in', 'final_norm': 'final_layer_norm',
             'blocks/attention_norm': 'layers.{}.input_layernorm',
             _QKV: 'layers.{}.attention.query_key_value',
             'blocks/output': 'layers.{}.attention.dense',
             'blocks/mlp_norm': 'layers.{}.post_attention_layernorm',
             'blocks/up': 'layers.{}.mlp.dense_h_to_4h',
             'blocks/down': 'layers.{}.mlp.dense_4h_to_h'},
    base='gpt_neox.', head='embed_out', split=_split_heads,
    rope=RopeRules(('rotary_emb_base', 'rotary_pct'), rotary_factor=0.25))
_LLAMA = Family(
    architecture='LlamaForCausalLM',
    fields=_COMMON | dict(norm_epsilon='rms_norm_eps', num_kv_heads='num_key_value_heads',
                          head_size='head_dim', qkv_bias='attention_bias',
                          output_bias='attention_bias', mlp_bias='mlp_bias'),
    defaults=dict(num_key_value_heads=None, head_dim=None, attention_bias=False, mlp_bias=False,
                  tie_word_embeddings=False),
    constants=dict(norm='rmsnorm', gated_mlp=True, positions='rope'),
    modules={'embedding': 'embed_tokens', 'final_norm': 'norm',
             'blocks/attention_norm': 'layers.{}.input_layernorm',
             'blocks/query': 'layers.{}.self_attn.q_proj',
             'blocks/key': 'layers.{}.self_attn.k_proj',
             'blocks/value': 'layers.{}.self_attn.v_proj',
             'blocks/query_norm': 'layers.{}.self_attn.q_norm',
             'blocks/key_norm': 'layers.{}.self_attn.k_norm',
             'blocks/output': 'layers.{}.self_attn.o_proj',
             'blocks/mlp_norm': 'layers.{}.post_attention_layernorm',
             'blocks/gate': 'layers.{}.mlp.gate_proj', 'blocks/up': 'layers.{}.mlp.up_proj',
             'blocks/down': 'layers.{}.mlp.down_proj'},
    base='model.', whole_heads=True)


def _like_llama(architecture, defaults, constants, modules=None, more_fields=None, **others):
  fields = {ours: name for ours, name in (_LLAMA.fields | (more_fields or {})).items()
            if ours not in constants}
  return _LLAMA._replace(
      architecture=architecture, fields=fields, defaults=_LLAMA.defaults | defaults,
      constants=_LLAMA.constants | constants, modules=modules or _LLAMA.modules,
      whole_heads=False)._replace(**others)


def _with_experts(architecture, experts, defaults, constants, more_fields=None, **others):
  modules = {ours: theirs for ours, theirs in _LLAMA.modules.items()
             if ours not in ('blocks/gate', 'blocks/up', 'blocks/down')}
  return _like_llama(architecture, defaults, constants, modules=modules | experts,
                     more_fields=_EXPERT_FIELDS | (more_fields or {}), **others)


_NO_BIAS = dict(qkv_bias=False, output_bias=False, mlp_bias=False)
_OUTPUT_NORMS = {'blocks/attention_output_norm': 'layers.{}.post_attention_layernorm',
                 'blocks/mlp_output_norm': 'layers.{}.post_feedforward_layernorm'}
_OLMO = dict(modules=_LLAMA.modules | _OUTPUT_NORMS)
_OLMO_CONSTANTS = dict(mlp_bias=False, norm_place='after', qk_norm=True, joint_qk_norm=True)
_GEMMA: dict[str, Any] = dict(
    modules=_LLAMA.modules | _OUTPUT_NORMS | {
        'blocks/mlp_norm': 'layers.{}.pre_feedforward_layernorm'},
    more_fields=dict(activation='hidden_activation', score_divisor='query_pre_attn_scalar',
                     logit_cap='final_logit_softcapping'),
    never_null=('head_size', 'num_kv_heads'), whole_heads=True, gain_less=1.0)
_GEMMA_DEFAULTS = dict(num_key_value_heads=4, head_dim=256, hidden_activation='gelu_pytorch_tanh',
                       query_pre_attn_scalar=256, sliding_window=4096, tie_word_embeddings=True,
                       use_bidirectional_attention=False)
_GEMMA_CONSTANTS = dict(mlp_bias=False, norm_place='both', scaled_embedding=True)
_CAUSAL = dict(use_bidirectional_attention=(None, False))
_FUSED = {_QKV: 'layers.{}.self_attn.qkv_proj',
          'blocks/gate blocks/up': 'layers.{}.mlp.gate_up_proj'}
_PHI3_MODULES = {ours: theirs for ours, theirs in _LLAMA.modules.items()
                 if not any(ours in fused.split() for fused in _FUSED)} | _FUSED
_EXPERTS = {f'blocks/experts/{name}': f'layers.{{}}.mlp.experts.{{}}.{name}_proj'
            for name in ('gate', 'up', 'down')} | {'blocks/router': 'layers.{}.mlp.gate'}
_MIXTRAL_EXPERTS = {'blocks/experts/gate': 'layers.{}.block_sparse_moe.experts.{}.w1',
                    'blocks/experts/up': 'layers.{}.block_sparse_moe.experts.{}.w3',
                    'blocks/experts/down': 'layers.{}.block_sparse_moe.experts.{}.w2',
                    'blocks/router': 'layers.{}.block_sparse_moe.gate'}
_SHARED_EXPERT = {f'blocks/shared/{name}': f'layers.{{}}.mlp.shared_expert.{name}_proj'
                  for name in ('gate', 'up', 'down')} | {
                      'blocks/shared_gate': 'layers.{}.mlp.shared_expert_gate'}
_EXPERT_FIELDS = dict(num_experts='num_experts', experts_per_token='num_experts_per_tok',
                      renormalized_experts='norm_topk_prob')
_LOCAL = dict(num_local_experts='num_experts')
# All layers must have experts.
_SPARSE: dict[str, Any] = dict(decoder_sparse_step=(1,), mlp_only_layers=([], None))
_SPARSE_DEFAULTS = dict(decoder_sparse_step=1, mlp_only_layers=None, norm_topk_prob=False)
_QWEN_WINDOWS = dict(use_sliding_window=False, sliding_window=4096, max_window_layers=28)

# The order is that in which `save` tries them.
FAMILIES = {
    'gpt2': _GPT2,
    'gpt_neox': _GPT_NEOX,
    'llama': _LLAMA,
    'mistral': _like_llama('MistralForCausalLM', dict(num_key_value_heads=8, sliding_window=4096),
                           _NO_BIAS, windows=EVERY_LAYER),
    'qwen2': _like_llama('Qwen2ForCausalLM', dict(num_key_value_heads=32) | _QWEN_WINDOWS,
                         dict(qkv_bias=True, output_bias=False, mlp_bias=False), windows=SWITCHED),
    'qwen3': _like_llama(
        'Qwen3ForCausalLM', dict(num_key_value_heads=32, head_dim=128) | _QWEN_WINDOWS,
        dict(mlp_bias=False, qk_norm=True), windows=SWITCHED),
    'olmo2': _like_llama('Olmo2ForCausalLM', {}, _OLMO_CONSTANTS, **_OLMO),
    'olmo3': _like_llama(
        'Olmo3ForCausalLM', dict(sliding_window=4096), _OLMO_CONSTANTS, **_OLMO,
        windows=ALL_BUT_EACH_4TH,
        rope=RopeRules(theta=5e5, of_windows=RopeRules((), theta=5e5, types=('default',)))),
    'gemma2': _like_llama(
        'Gemma2ForCausalLM',
        _GEMMA_DEFAULTS | dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        _GEMMA_CONSTANTS, **_GEMMA | dict(more_fields=_GEMMA['more_fields'] | dict(
            score_cap='attn_logit_softcapping')),
        windows=ALL_BUT_EACH_2ND, only=_CAUSAL),
    # transformers reads attn_logit_softcapping of Gemma 3, and computes without it.
    'gemma3_text': _like_llama(
        'Gemma3ForCausalLM',
        _GEMMA_DEFAULTS | dict(attn_logit_softcapping=None, final_logit_softcapping=None),
        _GEMMA_CONSTANTS | dict(qk_norm=True), **_GEMMA, windows=BY_PATTERN,
        only=_CAUSAL | dict(attn_logit_softcapping=(None,)),
        rope=RopeRules(theta=1e6, others=('rope_local_base_freq',), of_windows=RopeRules(
            ('rope_local_base_freq',), ('rope_theta',), theta=1e4, types=('default',)))),
    # transformers takes rope_type 'yarn' for 'longrope' here.
    'phi3': _like_llama(
        'Phi3ForCausalLM', dict(sliding_window=None), _NO_BIAS, modules=_PHI3_MODULES,
        windows=EVERY_LAYER, rope=RopeRules(('rope_theta', 'partial_rotary_factor'),
                                            rotary_factor=1.0, types=('default',))),
    'mixtral': _with_experts(
        'MixtralForCausalLM', _MIXTRAL_EXPERTS,
        dict(num_key_value_heads=8, sliding_window=None, num_local_experts=8,
             num_experts_per_tok=2),
        _NO_BIAS | dict(renormalized_experts=True), dict(num_experts='num_local_experts'),
        windows=EVERY_LAYER, rope=RopeRules(theta=1e6),
        aliases=dict(num_experts='num_local_experts')),
    'qwen2_moe': _with_experts(
        'Qwen2MoeForCausalLM', _EXPERTS | _SHARED_EXPERT,
        _SPARSE_DEFAULTS | dict(
            num_key_value_heads=16, qkv_bias=True, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632),
        dict(output_bias=False, mlp_bias=False),
        dict(qkv_bias='qkv_bias', mlp_width='moe_intermediate_size',
             shared_mlp_width='shared_expert_intermediate_size'), only=_SPARSE),
    'qwen3_moe': _with_experts(
        'Qwen3MoeForCausalLM', _EXPERTS,
        _SPARSE_DEFAULTS | dict(num_key_value_heads=4, num_experts=128, num_experts_per_tok=8,
                                moe_intermediate_size=768),
        dict(mlp_bias=False, qk_norm=True), dict(mlp_width='moe_intermediate_size'), only=_SPARSE,
        aliases=_LOCAL),
    'olmoe': _with_experts(
        'OlmoeForCausalLM', _EXPERTS,
        dict(norm_topk_prob=False, clip_qkv=None, num_experts=64, num_experts_per_tok=8),
        dict(mlp_bias=False, qk_norm=True, joint_qk_norm=True), only=dict(clip_qkv=(None,)),
        aliases=_LOCAL),
}


# What all of them call experts in the memory of transformers 5, which saves them so if asked to: a
# tensor has those of a layer.
IN_MEMORY = '.mlp.experts.gate_up_proj', '.mlp.experts.down_proj'
_TOGETHER = {'blocks/experts/gate blocks/experts/up': f'layers.{{}}{IN_MEMORY[0]}',
             'blocks/experts/down': f'layers.{{}}{IN_MEMORY[1]}',
             'blocks/router': 'layers.{}.mlp.gate'}


def named_in_memory(family: Family, names: Iterable[str]) -> Family:
  """The family under the names that its modules have in memory, if these are such, or itself."""
  if not any(f'{IN_MEMORY[0]}.' in name for name in names):
    return family
  others = {ours: theirs for ours, theirs in family.modules.items()
            if not any(ours in together.split() for together in _TOGETHER)}
  return family._replace(modules=others | _TOGETHER)
