"""Hugging Face model folders, read and written without torch or pickle.

- `.io`: loads and saves a directory
- `.memory`: the same in memory: modules of PyTorch, and arrays by their names
- `.config`: config.json, in both directions
- `.families`: what each family of `transformers` calls our fields and modules
- `.leaves`: which tensors hold which of our parameters, their checks, and both ways
- `.positions`: what the families say of sliding windows and of RoPE
- `.tensors`: the tensors of safetensors files, read when they are needed, also quantized ones
- `.quantized`: tensors of other formats, as the numbers that they stand for
- `.gguf`, `.gguf_file`: GGUF files of llama.cpp, as if they were such folders
- `.adapters`: adapters of PEFT, merged into these, and written
"""

from bornbiased_jax.storage.huggingface.adapters import save_adapter
from bornbiased_jax.storage.huggingface.gguf import is_gguf
from bornbiased_jax.storage.huggingface.io import (
  Files,
  load,
  load_config,
  open_files,
  save,
)
from bornbiased_jax.storage.huggingface.memory import (
  from_state_dict,
  from_transformers,
  to_transformers,
)

__all__ = (
    'is_gguf', 'Files', 'load', 'load_config', 'open_files', 'save', 'save_adapter',
    'from_state_dict', 'from_transformers', 'to_transformers',
)
