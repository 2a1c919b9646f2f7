"""The door to Hugging Face: directories of `transformers`, without torch or pickle.

- `.io`: loads and saves a directory
- `.config`: config.json, in both directions
- `.families`: what each family of `transformers` calls our fields and modules
- `.rope`, `.windows`: what the families say of RoPE and of sliding windows
- `.tensors`: the tensors of safetensors files, read when they are needed
- `.weights`: which of them holds which of our parameters
- `.gguf`, `.gguf_file`: GGUF files of llama.cpp, as if they were such directories
- `.adapters`: adapters of PEFT, merged into these
- `.saving`: folders that appear complete, and those of adapters
- `.entries`: the entries of a stranger's JSON file
"""

from bornbiased_jax.storage.huggingface.gguf import is_gguf
from bornbiased_jax.storage.huggingface.io import (
  Files,
  load,
  load_config,
  open_files,
  open_layers,
  save,
)
from bornbiased_jax.storage.huggingface.saving import save_adapter

__all__ = (
    'is_gguf', 'Files', 'load', 'load_config', 'open_files', 'open_layers', 'save', 'save_adapter',
)
