"""Adapters as optimizers, which move few of the parameters whose gradient they get.

Prefix-Tuning+ moves only the matrices M of `block.Prefix`. LoRA moves only a product of
low rank in each matrix of a block. Its parameters are the merged model's, so that its
checkpoints are models like any other:

    W = W0 + s A B,   s = alpha / rank

W0, A [L, in, rank] and B [L, rank, out] are in the optimizer's state. From the gradient G of W, A
gets s G Bᵀ and B gets s Aᵀ G. A is drawn as PEFT draws it, and B begins at zero.
"""

from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from bornbiased_jax.configs import ModelConfig

# The only parameters that are trained, and the rank of LoRA if none is given.
ADAPTERS, RANK = ('lora', 'prefix_plus'), 8
PREFIX = 'prefix'  # The name of block.Prefix in a block.

Factors = dict[str, dict[str, jax.Array]]


class LoraState(NamedTuple):
  """What is trained, and what it is added to, each by the name of a module in a block."""

  base: dict[str, dict[str, jax.Array]]  # the matrix at the beginning, as 'kernel'
  factors: Factors  # 'A' and 'B'
  inner: Any  # the state of the optimizer of the factors


def restrict(inner: optax.GradientTransformation, adapter: str | None, rank: int | None,
             scale: float, key: jax.Array | None) -> optax.GradientTransformation:
  """An optimizer of all parameters that moves only an adapter's, as `inner` says."""
  match adapter:
    case 'lora':
      return lora(inner, rank, scale, key)
    case 'prefix_plus':
      return optax.multi_transform({'moved': inner, 'frozen': optax.set_to_zero()}, _labels)
  return inner


def _labels(params):
  return jax.tree_util.tree_map_with_path(
      lambda path, _: 'moved' if PREFIX in (key.key for key in path) else 'frozen', params)


def add_prefix(config: ModelConfig, params: dict) -> dict:
  """The parameters, with `block.Prefix` at zero where the network has none."""
  if PREFIX in params['blocks']:
    return params
  memory = jnp.zeros((config.num_layers, config.num_heads, config.head_size, config.head_size))
  return params | {'blocks': params['blocks'] | {PREFIX: {'memory': memory}}}


def lora(inner: optax.GradientTransformation, rank: int | None, scale: float,
         key: jax.Array | None) -> optax.GradientTransformation:
  """What `restrict` makes of an optimizer for LoRA of `rank`; A is drawn from the key, once."""
  def init(params):
    base = {name: {'kernel': module['kernel']} for name, module in params['blocks'].items()
            if 'kernel' in module}
    keys = jax.random.split(key, len(base))
    factors = {name: _draw(base[name]['kernel'].shape, rank, own)
               for name, own in zip(sorted(base), keys, strict=True)}
    return LoraState(base, factors, inner.init(factors))

  def update(gradient, state, params):
    of_factors = {name: _pull(gradient['blocks'][name]['kernel'], scale, **own)
                  for name, own in state.factors.items()}
    steps, memory = inner.update(of_factors, state.inner, state.factors)
    factors = optax.apply_updates(state.factors, steps)
    changes = jax.tree.map(jnp.zeros_like, params)
    for name, own in factors.items():
      merged = state.base[name]['kernel'] + scale * _matmul(own['A'], own['B'])
      changes['blocks'][name]['kernel'] = merged - params['blocks'][name]['kernel']
    return changes, LoraState(state.base, factors, memory)

  return optax.GradientTransformation(init, update)


def _draw(shape, rank, key):
  num_layers, ins, outs = shape
  limit = ins ** -0.5
  return {'A': jax.random.uniform(key, (num_layers, ins, rank), minval=-limit, maxval=limit),
          'B': jnp.zeros((num_layers, rank, outs))}


def _pull(gradient, scale, A, B):
  """The gradients of the factors from the gradient of their product."""
  return {'A': scale * _matmul(gradient, B.mT), 'B': scale * _matmul(A.mT, gradient)}


def _matmul(a, b):
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
