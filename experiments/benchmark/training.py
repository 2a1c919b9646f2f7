"""The training step, a large matrix product, its own parts and PyTorch's compiled step.

The step of several networks is compared with steps of one network after another.
"""

import dataclasses
import functools
import importlib.util
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.models import attention, attention_kernels, flops, sharding
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import ensemble_step, init_state, train_step

from . import step_parts, timing

# On a CPU a step takes seconds. On an accelerator the recipe is that of Table 13,
# with one part of its batch.
SIZES = {'cpu': [dict(batch_size=4, length=128, dtype='float32', rounds=5),
                 dict(batch_size=4, length=512, dtype='float32', rounds=3)],
         'gpu': [dict(batch_size=32, length=2048, dtype='bfloat16', rounds=11)],
         'tpu': [dict(batch_size=8, length=2048, dtype='bfloat16', rounds=11)]}
# In the first of these, starting a program costs as much as running it. The last
# is that of training_study.
ENSEMBLES = [
    dict(batch_size=1, length=32, count=64, num_layers=2, width=16, mlp_width=32, head_size=4),
    dict(batch_size=4, length=64, count=8),
    dict(batch_size=16, length=128, count=10),
]


def training() -> list[dict]:
  large = [step_row('nano_llama2', **size) for size in SIZES[jax.default_backend()]]
  return large + [ensemble_row(**ensemble) for ensemble in ENSEMBLES]


def small_training() -> list[dict]:
  """A step of a tiny network and one of two networks, in two rounds."""
  return [step_row('tiny_llama2', batch_size=2, length=32, dtype='float32', rounds=2, num_layers=2),
          ensemble_row(batch_size=1, length=32, count=2, rounds=2)]


def recipe_of(batch_size, length):
  return Recipe(num_steps=10**6, batch_size=batch_size, length=length, warmup_steps=1)


def stepper(config, recipe, seeds, attend=None):
  """A function that makes one step, always on the same tokens, and keeps its state to itself.

  `seeds` is one seed, or of several networks, which train together without `attend`.
  """
  init, step = programs(config, recipe, attend)
  state = [init(seeds)]
  shape = (recipe.batch_size, recipe.length + 1)
  tokens_BT = jax.random.randint(jax.random.key(0), shape, 0, config.vocab_size)

  def run():
    state[0], metrics = step(state[0], tokens_BT)
    return metrics

  return run


@functools.lru_cache
def programs(config, recipe, attend):
  """Initialization and step, compiled once; for several networks if `attend` is None."""
  init = functools.partial(init_state, config, recipe)
  step = functools.partial(train_step, attend=attend) if attend else ensemble_step
  return (jax.jit(init if attend else jax.vmap(init)),
          jax.jit(functools.partial(step, config, recipe), donate_argnums=0))


def step_row(name, batch_size, length, dtype, rounds, **changes):
  """A step of one network, compared with a large matrix product and the step of PyTorch."""
  config, recipe = configs.get(name, dtype=dtype, **changes), recipe_of(batch_size, length)
  product, product_flops = flops.matmul(dtype)
  attend = attention_kernels.choose(config, length, sharding.make_mesh(jax.device_count()))
  step = stepper(config, recipe, jnp.uint32(42), attend)
  parts = step_parts.shares(config, recipe, attend, step, rounds)
  peer = torch_stepper(config, recipe)
  peers = {'torch': peer, 'torch matmul': torch_matmul(dtype)} if peer else {}
  seconds = timing.in_turn({'matmul': product, 'step': step} | peers, rounds)
  rate = product_flops / np.median(seconds['matmul'])
  total = 3 * batch_size * flops.forward_flops(config, length, num_logits=length)
  return {
      'benchmark': f'{name} training step', 'length': length, 'batch_size': batch_size,
      'dtype': dtype, 'rounds': rounds,
      'attention': getattr(attend, '__name__', type(attend).__name__),
      'matmul_flops_per_s': rate,
      'tokens_per_s': batch_size * length / np.median(seconds['step']),
      'utilization': timing.spread(total / seconds['step'] / rate),
      **parts,
      'peer': "torch.compile of transformers'",
      'peer_over_ours': peer and timing.spread(seconds['torch'] / seconds['step']),
      'matmul_of_peer_over_ours': peer and timing.spread(
          seconds['torch matmul'] / seconds['matmul']),
  }


def torch_network(config):
  """The model of `transformers` with the same parameters, in float32 and ready to train."""
  import transformers
  with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / 'model'
    huggingface.save(path, dataclasses.replace(config, dtype='float32'), init_params(config, 42))
    return transformers.AutoModelForCausalLM.from_pretrained(path).train()


def torch_matmul(dtype):
  """The product of `flops.matmul`, by PyTorch."""
  import torch
  size = flops.matmul_size()
  a, b = (torch.randn(size, size, dtype=getattr(torch, dtype), device=torch_device())
          for _ in range(2))
  return lambda: (a @ b)[0, 0].item()  # To read an entry waits for the product.


def torch_device():
  """Where PyTorch computes: on a GPU if JAX does."""
  return 'cuda' if jax.default_backend() == 'gpu' else 'cpu'


def torch_stepper(config, recipe):
  """The same by torch.compile and torch.optim.AdamW; None if they are not installed."""
  if not all(map(importlib.util.find_spec, ('torch', 'transformers'))):
    return None
  import torch
  device = torch_device()
  network = torch_network(config).to(device)
  adam = torch.optim.AdamW(network.parameters(), lr=1e-4, betas=(recipe.beta1, recipe.beta2),
                           weight_decay=recipe.weight_decay, fused=True)
  ids = torch.randint(config.vocab_size, (recipe.batch_size, recipe.length + 1), device=device)

  @torch.compile
  def loss_of(ids):
    with torch.autocast(device, torch.bfloat16, enabled=config.dtype == 'bfloat16'):
      logits = network(ids[:, :-1], use_cache=False).logits
      return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

  def run():
    loss_of(ids).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
    adam.step()
    adam.zero_grad()
    if device == 'cuda':
      torch.cuda.synchronize()
    return 0

  return run


def ensemble_row(batch_size, length, count, rounds=11, **changes):
  """One jitted step of several networks, and as many steps of one network."""
  config = configs.get('tiny_llama2', vocab_size=257, **changes)
  recipe = recipe_of(batch_size, length)
  together = stepper(config, recipe, jnp.arange(count, dtype=jnp.uint32))
  alone = [stepper(config, recipe, jnp.uint32(seed), attention.plain) for seed in range(count)]
  loop = lambda: [run() for run in alone]
  seconds = timing.in_turn({'together': together, 'loop': loop}, rounds)
  return {'benchmark': f'{count} networks of width {config.width} train together',
          'length': length, 'batch_size': batch_size, 'rounds': rounds,
          'peer': 'one after another',
          'peer_over_ours': timing.spread(seconds['loop'] / seconds['together'])}
