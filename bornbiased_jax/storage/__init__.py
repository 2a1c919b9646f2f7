"""The two doors through which networks come and go.

  checkpoint             orbax checkpoints of a run, on any mesh
  huggingface            directories of `transformers`, safetensors alone
  huggingface_families   which of its models are which configuration
"""

from bornbiased_jax.storage.checkpoint import Writer, load_config, load_params, steps
