"""F = λ Σ lr of known recipes, from their published schedules.

F says how much of an initial weight decoupled decay leaves, exp(−F). Where a source does not say
which optimizer step decays what, F is that of the matrices.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import learning_rate


class Known(NamedTuple):
  """A recipe, and where it is from.

  `made` is how many steps of its schedule were made, if not all, and `floor` a learning rate below
  which that of the recipe does not fall.
  """

  recipe: Recipe
  source: str
  made: int | None = None
  floor: float = 0.0


def cosine(steps: int, peak: float, low: float, warmup: int) -> Recipe:
  return Recipe(steps, 1, 1, peak_lr=peak, min_lr=low, warmup_steps=warmup, weight_decay=0.1)


def of_pythia(size: str, peak: float) -> Known:
  """GPT-NeoX has a cosine to 0 over all steps, with a floor at a tenth of the peak."""
  source = f'EleutherAI/pythia, pythia-{size.lower()}.yml; gpt-neox, learning_rates.py'
  return Known(cosine(143_000 + 1430, peak, 0.0, 1430), source, 143_000, peak / 10)


_OLMO_TOKENS = 1024 * 4096  # Sequences and tokens of a step.
KNOWN = {
    'the paper, nano LLaMA': Known(
        cosine(200_000, 6e-4, 6e-5, 2000), 'Tables 13 and 14; rates are taken to be those of '
        'nanoGPT, whose block it is'),
    'nanoGPT, GPT-2 124M': Known(
        cosine(600_000, 6e-4, 6e-5, 2000), 'karpathy/nanoGPT, config/train_gpt2.py and train.py'),
    'Pythia 160M': of_pythia('160M', 6e-4),
    'Pythia 6.9B': of_pythia('6.9B', 1.2e-4),
    # The cosine is laid out for 5 T tokens. Embeddings do not decay.
    'OLMo 2 7B, stage 1': Known(
        cosine(round(5e12 / _OLMO_TOKENS), 3e-4, 3e-5, 2000),
        'allenai/OLMo, configs/official-1124/OLMo2-7B-stage1.yaml; 3.9 T tokens were read',
        round(3.896e12 / _OLMO_TOKENS)),
    # The decay is that of its scaling-law experiments, 0.1 times the rate; how many steps of the
    # schedule were made is not said.
    'Llama 3 405B': Known(
        cosine(1_200_000, 8e-5, 8e-7, 8000), 'arXiv 2407.21783, sections 3.2.1 and 3.4.1')}


def forgetting(known: Known) -> float:
  """F of the steps that were made."""
  steps = np.arange(known.made or known.recipe.num_steps)
  lr_M = np.asarray(jax.jit(learning_rate(known.recipe))(steps), np.float64)
  return float(known.recipe.weight_decay * np.maximum(
      lr_M, np.where(steps < known.recipe.warmup_steps, 0, known.floor)).sum())


def table() -> list[dict]:
  """A row per recipe."""
  return [{'recipe': name, 'forgetting': (F := forgetting(known)), 'left': math.exp(-F),
           'source': known.source} for name, known in KNOWN.items()]
