"""A history of checkpoints: its models, and what tests read of each."""

from typing import NamedTuple

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.tensors import Taker, Tensor
from bornbiased_jax.storage.huggingface.tensors import is_finite
from bornbiased_jax.storage.layers import Layers

from ..shared.networks import expand, step_of

LEAST = 3


class Checkpoint(NamedTuple):
  """What is kept of a checkpoint.

  `tensors` has digest, shape and 1,024 entries of each tensor, by a name such as
  'layer 3/up/kernel'; tests of descent compare `features`.
  """

  tensors: dict[str, Tensor]
  features: Features


def find(given: list[str]) -> dict[int, str]:
  """The models of a history by their steps, ascending.

  `given` are a run, a folder with a folder for each step, or the models themselves.
  """
  names = [name for each in given for name in expand(each)]
  found: dict[int, str] = {}
  for name in names:
    step = step_of(name)
    if step is None:
      missing = '' if path_of(name).exists() else 'no such folder, and '
      raise InputError(f'{name}: {missing}no step in this name; give ORG/MODEL@step1000, RUN@1000, '
                       'or a folder such as step_1000, checkpoint-1000 or 1000')
    if step in found:
      raise InputError(f'{found[step]} and {name} are both of step {step}; give one of them')
    found[step] = name
  if len(found) < LEAST:
    raise InputError(f'{" ".join(given) or "no history"}: {len(found)} checkpoints, and at least '
                     f'{LEAST} are needed; give a run, a folder of folders step_0, step_1000, …, '
                     'or ORG/MODEL@step{0,1000,2000}')
  return dict(sorted(found.items()))


def survey(layers: Layers) -> Checkpoint:
  """Reads a checkpoint once, a layer at a time; raises InputError for what is not finite."""
  takers: dict[str, Taker] = {}
  found: list[dict] = []
  for name, piece in layers.leaves(
      lambda block: found.append(features.of_layer(layers.config, block))):
    shape = layers.shapes[name]
    if name.startswith('blocks/'):
      name = f'layer {len(found) + 1}/{name.removeprefix("blocks/")}'
      shape, piece = shape[1:], piece[0]
    if not is_finite(piece):
      raise InputError(f'{name} has NaN or infinities among its weights')
    # -0 and 0 are one number.
    takers.setdefault(name, Taker(name, shape)).see(piece + np.float32(0))
  return Checkpoint({name: taker.tensor() for name, taker in takers.items()},
                    features.stacked(layers.config, found))
