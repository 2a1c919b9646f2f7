"""Makes tests/goldens/, tiny checkpoints of `transformers` with the logits that it computes.

It was run once with torch 2.13 and transformers 5.23 installed, and takes 5 seconds:

  python tests/make_goldens.py            # all of them
  python tests/make_goldens.py gpt2       # one

With other versions, and on other processors, the last digits of logits differ.
"""

from pathlib import Path
import shutil
import sys

import numpy as np

GOLDENS = Path(__file__).parent / 'goldens'
LENGTH = 24

_SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
              num_attention_heads=4, max_position_embeddings=256, bos_token_id=None,
              eos_token_id=None)
# The epsilons are so large that a wrong one shows.
_GROUPED = dict(_SIZES, num_key_value_heads=2, rms_norm_eps=0.03)
_NEOX = dict(_SIZES, layer_norm_eps=0.03, hidden_act='gelu_new', use_parallel_residual=False,
             rotary_pct=1.0)

# Name: (model_type, config, dtype, other arguments of save_pretrained). The place is the seed, so
# that a new one comes last.
MODELS = {
    'gpt2': (
        'gpt2', dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=256,
                     layer_norm_epsilon=0.03, bos_token_id=None, eos_token_id=None),
        'float32', {}),
    'llama_tied_sharded': (
        'llama', dict(_GROUPED, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        'float32', dict(max_shard_size='40KB')),
    'mistral_window': (
        'mistral', dict(_GROUPED, head_dim=12, sliding_window=7), 'float32', {}),
    'qwen2_bf16': ('qwen2', dict(_GROUPED, rope_theta=1e6), 'bfloat16', {}),
    'qwen3_tied': ('qwen3', dict(_GROUPED, head_dim=16, tie_word_embeddings=True), 'float32', {}),
    'gpt_neox': ('gpt_neox', _NEOX, 'float32', {}),
    'gpt_neox_tied_fp16': (
        'gpt_neox', dict(_NEOX, tie_word_embeddings=True, rotary_emb_base=500.0), 'float16', {}),
    'pythia': (
        'gpt_neox', dict(_NEOX, use_parallel_residual=True, rotary_pct=0.25, num_attention_heads=2),
        'float32', {}),
    # The lengths are so short that the golden sequences reach what scaling changes.
    'llama3_scaled': (
        'llama', dict(_GROUPED, rope_parameters=dict(
            rope_type='llama3', rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=32)), 'float32', {}),
    'qwen2_yarn': (
        'qwen2', dict(_GROUPED, hidden_size=48, rope_parameters=dict(
            rope_type='yarn', rope_theta=100.0, factor=4.0, beta_fast=3.0, beta_slow=0.5,
            original_max_position_embeddings=64)), 'float32', {}),
    'llama_linear': (
        'llama', dict(_GROUPED, rope_parameters=dict(
            rope_type='linear', rope_theta=1e4, factor=2.5)), 'float32', {}),
    'qwen2_window': (
        'qwen2', dict(_GROUPED, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                      max_window_layers=1), 'float32', {}),
    'olmo2': ('olmo2', dict(_GROUPED, rope_theta=300.0), 'float32', {}),
    'olmo3': (
        'olmo3', dict(_GROUPED, num_hidden_layers=4, sliding_window=6, rope_parameters=dict(
            full_attention=dict(rope_type='yarn', rope_theta=100.0, factor=4.0, beta_fast=3.0,
                                beta_slow=0.5, original_max_position_embeddings=64),
            sliding_attention=dict(rope_type='default', rope_theta=100.0))), 'float32', {}),
    # Bounds so tight that scores and logits without them differ.
    'gemma2': (
        'gemma2', dict(_GROUPED, num_hidden_layers=3, head_dim=12, query_pre_attn_scalar=7,
                       sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=9.0),
        'float32', {}),
    'gemma3_bf16': (
        'gemma3_text', dict(_GROUPED, num_hidden_layers=3, head_dim=12, query_pre_attn_scalar=20,
                            sliding_window=5, sliding_window_pattern=3,
                            tie_word_embeddings=False, rope_parameters=dict(
            full_attention=dict(rope_type='linear', rope_theta=900.0, factor=3.0),
            sliding_attention=dict(rope_type='default', rope_theta=40.0))), 'bfloat16', {}),
    'phi3': (
        'phi3', dict(_GROUPED, hidden_size=48, sliding_window=8, partial_rotary_factor=0.5,
                     pad_token_id=None), 'float32', {}),
}


def randomize(model, seed):
  """Draws all parameters, so that none is 0, 1 or equal to another, which could hide a mistake."""
  import torch

  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      is_gain = parameter.ndim == 1 and name.endswith('weight')
      parameter.copy_(is_gain + 0.25 * torch.randn(parameter.shape, generator=generator))


def store(name, seed, path):
  """Writes MODELS[name] with random parameters."""
  import torch
  import transformers

  model_type, config, dtype, arguments = MODELS[name]
  config = transformers.AutoConfig.for_model(model_type, **config)
  model = transformers.AutoModelForCausalLM.from_config(config)
  randomize(model, seed)
  model.to(getattr(torch, dtype)).save_pretrained(path, **arguments)
  (path / 'generation_config.json').unlink(missing_ok=True)


def logits(path, tokens):
  """What `transformers` computes in float32 from the checkpoint at `path`."""
  import torch
  import transformers

  model, report = transformers.AutoModelForCausalLM.from_pretrained(
      path, dtype=torch.float32, attn_implementation='eager', output_loading_info=True)
  # It draws parameters that it does not find, and only mentions them in the report.
  assert not any(report.values()), report
  return logits_of(model, tokens)


def logits_of(model, tokens):
  import torch

  with torch.no_grad():
    return model.eval()(torch.from_numpy(tokens)).logits.numpy()


def main(names):
  for name in names:
    path, seed = GOLDENS / name, list(MODELS).index(name)
    shutil.rmtree(path, ignore_errors=True)
    store(name, seed, path)
    tokens = np.random.default_rng(seed).integers(96, size=(2, LENGTH))
    np.savez_compressed(path / 'logits.npz', tokens=tokens.astype(np.int32),
                        logits=logits(path, tokens))


if __name__ == '__main__':
  main(sys.argv[1:] or MODELS)
