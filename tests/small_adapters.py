"""Small adapters of PEFT, written without it, and a directory of `transformers` for a base."""

import json

import numpy as np
from safetensors.numpy import save_file

from make_goldens import GOLDENS

BASE = GOLDENS / 'llama_linear'
QUERY = 'model.layers.1.self_attn.q_proj'
SHAPES = {QUERY: (32, 32), 'lm_head': (32, 96), 'model.embed_tokens': (96, 32)}


def write_adapter(path, modules, **entries):
  """An adapter of rank 2 for modules of shapes [in, out]; returns its tensors."""
  random, tensors = np.random.default_rng(0), {}
  for module, (ins, outs) in modules.items():
    kind = 'lora_embedding_{}' if 'embed' in module else 'lora_{}.weight'
    for letter, shape in (('A', (2, ins)), ('B', (outs, 2))):
      name = f'base_model.model.{module}.{kind.format(letter)}'
      tensors[name] = random.normal(size=shape).astype(np.float32)
  path.mkdir(exist_ok=True)
  save_file(tensors, path / 'adapter_model.safetensors')
  stored = {'peft_type': 'LORA', 'r': 2, 'lora_alpha': 6, 'target_modules': None}
  (path / 'adapter_config.json').write_text(json.dumps(stored | entries))
  return tensors


def edit(path, **entries):
  stored = json.loads((path / 'adapter_config.json').read_text()) | entries
  (path / 'adapter_config.json').write_text(
      json.dumps({name: value for name, value in stored.items() if value is not ...}))
