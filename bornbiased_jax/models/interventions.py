"""What makes and unmakes attention sinks: changes of the value aggregate o_i before W_O, and of who attends to whom.

Averaging leaves position i a standard deviation of 1/sqrt(i) of a value's (Eq 2),
so that the first position stands out. These level it, or make another stand out:

    amplify      o_i sqrt(i), flat in i
    attenuate    o_i sqrt(i / T_max), flat as well, and small
    rmsnorm      each head's o_i to mean square 1, one gain vector for all heads (in transformer.py)
    gain         o_i times the mean of sqrt(i): the size of 'amplify' without its shape
    mask         position k attends to itself alone, and keeps the variance of one value
    variance     o_k to m + s (o_k - m), m its mean over channels
    norm         s o_k, the control of 'variance'

i counts from 1 here and k from 0; T_max is config.length. All but a few
multiplications a channel are free, and fused attention kernels stay as they are.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig


def intervene(config: ModelConfig, aggregate_BTHK: jax.Array, value_BTGK: jax.Array, first: int) -> jax.Array:
  """The value aggregate of positions first, first + 1, …, whose own values are value_BTGK, after the intervention."""
  T, H = aggregate_BTHK.shape[1:3]
  position_T = first + np.arange(T)
  at_k_T11 = (position_T == config.intervention_position)[:, None, None]
  strength = config.intervention_strength
  match config.intervention:
    case 'amplify':
      return _scaled(aggregate_BTHK, np.sqrt(position_T + 1))
    case 'attenuate':
      return _scaled(aggregate_BTHK, np.sqrt((position_T + 1) / config.length))
    case 'gain':
      return _scaled(aggregate_BTHK, np.full(T, np.sqrt(np.arange(1, config.length + 1)).mean()))
    case 'mask':
      return jnp.where(at_k_T11, jnp.repeat(value_BTGK, H // value_BTGK.shape[2], axis=2), aggregate_BTHK)
    case 'variance':
      mean_BT11 = aggregate_BTHK.mean(axis=(2, 3), keepdims=True)
      return jnp.where(at_k_T11, mean_BT11 + strength * (aggregate_BTHK - mean_BT11), aggregate_BTHK)
    case 'norm':
      return jnp.where(at_k_T11, strength * aggregate_BTHK, aggregate_BTHK)
    case _:
      return aggregate_BTHK


def _scaled(x_BTHK, factor_T):
  return x_BTHK * jnp.asarray(factor_T[:, None, None], x_BTHK.dtype)


def intervene_weights(config: ModelConfig, weights_BHTS: jax.Array, first: int) -> jax.Array:
  """Attention weights of the queries first, first + 1, … as 'mask' leaves them."""
  if config.intervention != 'mask':
    return weights_BHTS
  T, S = weights_BHTS.shape[2:]
  at_k_T1 = (first + np.arange(T) == config.intervention_position)[:, None]
  return jnp.where(at_k_T1, np.arange(S) == config.intervention_position, weights_BHTS)
