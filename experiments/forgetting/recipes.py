"""F = λ Σ lr of known recipes, from their published schedules.

F says what decoupled decay alone leaves of a weight at birth, exp(−F). Where a source does not say
which optimizer step decays what, F is that of the matrices.
"""

import math
from typing import NamedTuple

import numpy as np

from bornbiased_jax.training.step import Recipe, learning_rate


class Known(NamedTuple):
  """A recipe, the steps that were made of its schedule (all, if None), and where it is from."""

  recipe: Recipe
  source: str
  made: int | None = None


def cosine(steps: int, peak: float, low: float, warmup: int) -> Recipe:
  return Recipe(steps, 1, 1, peak_lr=peak, min_lr=low, warmup_steps=warmup, weight_decay=0.1)


_OLMO_TOKENS = 1024 * 4096  # Sequences and tokens of a step.
KNOWN = {
    'the paper, nano LLaMA': Known(
        cosine(200_000, 6e-4, 6e-5, 2000), 'Tables 13 and 14; the block is that of nanoGPT'),
    'nanoGPT, GPT-2 124M': Known(
        cosine(600_000, 6e-4, 6e-5, 2000), 'karpathy/nanoGPT, config/train_gpt2.py and train.py'),
    'Pythia 160M': Known(
        cosine(143_000, 6e-4, 6e-5, 1430), 'EleutherAI/pythia, models/160M/pythia-160m.yml'),
    'Pythia 6.9B': Known(
        cosine(143_000, 1.2e-4, 1.2e-5, 1430), 'EleutherAI/pythia, models/6.9B/pythia-6.9b.yml'),
    # The cosine is laid out for 5 T tokens. Embeddings do not decay.
    'OLMo 2 7B, stage 1': Known(
        cosine(round(5e12 / _OLMO_TOKENS), 3e-4, 3e-5, 2000),
        'allenai/OLMo, configs/official-1124/OLMo2-7B-stage1.yaml; 3.9 T tokens were read',
        round(3.896e12 / _OLMO_TOKENS)),
    # The decay is that of its scaling-law experiments, 0.1 times the rate.
    'Llama 3 405B': Known(
        cosine(1_200_000, 8e-5, 8e-7, 8000), 'arXiv 2407.21783, sections 3.2.1 and 3.4.1')}


def forgetting(known: Known) -> float:
  """F of the steps that were made."""
  steps = np.arange(known.made or known.recipe.num_steps)
  lr_M = np.asarray(learning_rate(known.recipe)(steps), np.float64)
  return float(known.recipe.weight_decay * lr_M.sum())


def table() -> list[dict]:
  """A row per recipe."""
  return [{'recipe': name, 'forgetting': (F := forgetting(known)), 'left': math.exp(-F),
           'source': known.source} for name, known in KNOWN.items()]
