"""The door to Hugging Face: directories of `transformers`, without torch or pickle.

- `.io`: loads and saves a directory
- `.config`: config.json, in both directions
- `.families`: what each family of `transformers` calls our fields and modules
- `.rope`, `.windows`: what the families say of RoPE and of sliding windows
- `.weights`: the safetensors files, and which tensor holds which of our parameters
- `.adapters`: adapters of PEFT, merged into these
- `.entries`: the entries of a stranger's JSON file
"""

from bornbiased_jax.storage.huggingface.io import load, load_config, open_layers, save

__all__ = 'load', 'load_config', 'open_layers', 'save'
