"""A history of checkpoints: which networks it has, and what is read of each."""

import re
import sys
from typing import NamedTuple

from flax.traverse_util import flatten_dict
import jax
import numpy as np

from bornbiased_jax import storage
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage.evidence import features
from bornbiased_jax.lineage.evidence.features import Features
from bornbiased_jax.lineage.evidence.tensors import Taker, Tensor
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.storage.huggingface.tensors import is_finite
from bornbiased_jax.storage.layers import Layers

LEAST = 3
# 'step' goes before the other words. A number such as 1.5k, 1e4 or 1,000 is none.
_STEPS = [re.compile(rf'(?<![a-z])(?:{word})[-_=]?0*(\d+)(?![\d.,]|[kme])', re.IGNORECASE)
          for word in ('step', 'checkpoint|ckpt|iter')]

_NUMBER = re.compile(r'^(\d+)$')


class Checkpoint(NamedTuple):
  """What is kept of a checkpoint.

  `tensors` has digest, shape and 1,024 entries of each tensor, by a name such as
  'layer 3/up/kernel'; tests of descent compare `features`.
  """

  config: ModelConfig
  tensors: dict[str, Tensor]
  features: Features


def find(given: list[str]) -> dict[int, str]:
  """The networks of a history by their steps, ascending.

  `given` are a run, a folder with a folder for each step, or the networks themselves.
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


def expand(given: str) -> list[str]:
  """The checkpoints of a run, or of a folder with a folder for each step, or the name itself."""
  path = path_of(given)
  steps = checkpoint.steps(path)
  if steps and not any((path / str(step) / 'config.json').exists() for step in steps):
    return [f'{given.rstrip("/")}@{step}' for step in steps]
  children = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
  inside = [child for child in children if step_of(child.name) is not None]
  if not inside:
    return [given]
  for child in children:
    if child not in inside:
      print(f'left out: {child} has no step in its name', file=sys.stderr)
  return [str(_network_in(child)) for child in inside]


def _network_in(step):
  """The folder of a step, or the only one of transformers in it, at any depth."""
  if (step / 'config.json').exists():
    return step
  found = sorted(file.parent for file in step.rglob('config.json'))
  if len(found) > 1:
    raise InputError(f'{step} holds several networks; give all of one kind, such as '
                     f'{step.parent}/*/{found[0].relative_to(step)}')
  return found[0] if found else step


def step_of(name: str) -> int | None:
  """The step that a name claims, or else that of the folders above it which is nearest.

  >>> [step_of(name) for name in ('org/a@stage1-step1000-tokens4B', 'run@7', 'x/a_010', 'b-70m')]
  [1000, 7, 10, None]
  >>> [step_of(name) for name in ('ckpt2-step1000', 'misstep3-1000', 'epoch=1-step=50', 'step1.5k')]
  [1000, 1000, 50, None]
  >>> [step_of(name) for name in ('global_step_20/actor/huggingface', '000500/pretrained_model')]
  [20, 500]
  """
  *above, last = re.split('[@/]', name.rstrip('/'))
  if match := re.search(r'(?:^|[-_])(\d+)$', last):
    above = [*above, match[1]]
  for part in (last, *reversed(above)):
    for pattern in (*_STEPS, _NUMBER):
      if match := pattern.search(part):
        return int(match[1])
  return None


def open_network(name: str) -> Layers:
  """A network that is read layer by layer; of a run all of it is in memory."""
  model = storage.open(name)
  return in_memory(*model.load()) if model.files is None else model.layers()


def in_memory(config: ModelConfig, params: dict) -> Layers:
  """The layers of a network that memory holds."""
  params = jax.tree.map(np.asarray, params)
  flat = flatten_dict(params, sep='/')
  return Layers(config, {name: leaf.shape for name, leaf in flat.items()},
                lambda i: jax.tree.map(lambda leaf: leaf[i], params['blocks']),
                lambda name, first, last: flat[name][first:last])


def survey(layers: Layers) -> Checkpoint:
  """Reads a checkpoint once, a layer at a time; raises InputError for what is not finite."""
  tensors, found = {}, []
  for i in range(layers.config.num_layers):
    block = layers.read_block(i)
    for name, leaf in flatten_dict(block, sep='/').items():
      tensors |= _taken(f'layer {i + 1}/{name}', leaf.shape, [leaf])
    found.append(features.of_layer(layers.config, block))
  for name in layers.outside_blocks():
    tensors |= _taken(name, layers.shapes[name], layers.pieces(name))
  return Checkpoint(layers.config, tensors, features.stacked(layers.config, found))


def _taken(name, shape, pieces):
  taker = Taker(name, shape)
  for piece in pieces:
    if not is_finite(piece):
      raise InputError(f'{name} has NaN or infinities among its weights')
    taker.see(piece + np.float32(0))  # -0 and 0 are one number.
  return {name: taker.tensor()}
