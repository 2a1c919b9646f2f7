"""The adapter that a run trained, written for PEFT."""

import os

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import abstract_state


def export_adapter(directory: str | os.PathLike, path: str | os.PathLike,
                   step: int | None = None) -> None:
  """Writes what a run has trained as LoRA as a directory of PEFT (`huggingface.save_adapter`).

  Args:
    directory: folder of one run.
    path: directory to make. Its base is named as the run was told to begin with.
    step: the checkpoint, by default the latest that is whole.
  """
  def abstract(metadata):
    if (metadata.get('recipe') or {}).get('adapter') != 'lora':
      raise InputError(f'{directory} is not of a run that trained LoRA')
    config, recipe = checkpoint.config_of(metadata), Recipe(**metadata['recipe'])
    return {'opt_state': abstract_state(config, recipe, None).opt_state}

  metadata, items = checkpoint.restore(directory, abstract, None if step is None else [step])
  huggingface.save_adapter(
      path, checkpoint.config_of(metadata), items['opt_state'].factors,
      Recipe(**metadata['recipe']).scale, (metadata.get('parent') or {}).get('directory'))
