"""Small training runs, also as a program that a test can start and kill, or start twice."""

import sys

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.data.corpus import Corpus
from bornbiased_jax.models import flops, sharding
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training import Run, loop
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.start import begin

CONFIG = configs.get('tiny_llama2', num_layers=2, num_heads=2, width=32, mlp_width=64,
                     vocab_size=50)
MAKE_MESH = sharding.make_mesh  # `one_device` replaces it.
RECIPE = dict(num_steps=6, batch_size=8, length=16, peak_lr=1e-2, min_lr=1e-3, warmup_steps=2)


def tokens(seed=0, count=2000):
  ids = np.random.default_rng(seed).integers(0, 50, count, np.uint16)
  return Corpus(ids, 50, f'random {seed}', 'none', f'digest {seed}')


def mesh(*shape):
  shape = shape or (1, 1, 1)
  return MAKE_MESH(*shape, devices=jax.devices()[:int(np.prod(shape))])


@pytest.fixture(autouse=True, scope='module')
def one_device():
  """Shows the programs of a test module, which take all devices, only one of them."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, 'make_mesh', lambda *shape: mesh())
    yield


def run(directory, seeds=(3,), shape=(), recipe=(), **settings):
  settings = dict(data=tokens(), validation=tokens(1), data_seed=5, save_every=2, evaluate_every=3,
                  validation_sequences=8, config=CONFIG) | settings
  return Run(recipe=Recipe(**RECIPE | dict(recipe)), seeds=seeds, directory=directory,
             mesh=mesh(*shape), **settings)


def final(directory, seed=3):
  """Parameters of the last checkpoint of a run's network."""
  return checkpoint.load_params(directory / f'seed_{seed}')[1]


def save_beginning(run, step, metadata=None):
  """Saves the state that a run of one network begins with, as if it were that of `step`."""
  (state, (parent,)), writer = begin(run), checkpoint.Writer(*run.directories)
  writer.save(step, state.params, state.opt_state,
              metadata or run.metadata(*run.seeds, parent))
  writer.close()
  return state


def stop_after(monkeypatch, step, run):
  """Trains until the checkpoint of `step` is there, as if the run was killed then."""
  save = checkpoint.Writer.save

  def save_and_stop(writer, at, *rest):
    save(writer, at, *rest)
    if at == step and writer.directory.name == run.directories[-1].name:
      raise SystemExit

  monkeypatch.setattr(checkpoint.Writer, 'save', save_and_stop)
  with pytest.raises(SystemExit):
    loop.train(run)
  monkeypatch.undo()


def main(directory, num_steps, *distributed):
  """DIRECTORY NUM_STEPS [any flag if processes are connected]. One alone saves at every step."""
  sys.modules['tensorboardX'] = None  # As if not installed, since it imports torch.
  flops.matmul_size = lambda: 64
  from pathlib import Path
  shape = (2, jax.device_count() // 2, 1) if jax.device_count() > 1 else ()
  loop.train(run(Path(directory), shape=shape, recipe=dict(num_steps=int(num_steps)),
                 save_every=2 if distributed else 1))


if __name__ == '__main__':
  main(*sys.argv[1:])
