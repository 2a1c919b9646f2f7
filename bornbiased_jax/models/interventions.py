"""Interventions on attention sinks, most of them on the value aggregate o_i before W_O.

Uniform attention averages i values at position i, which leaves a standard deviation of
1/sqrt(i) of one value's (Eq 2), so the first position stands out. Some
interventions level the positions, others make another position stand out:

    amplify      o_i becomes sqrt(i) o_i, whose std is the same at every i
    attenuate    o_i becomes sqrt(i / T_max) o_i, as level as 'amplify' but small
    rmsnorm      each head's o_i gets mean square 1 and then one gain vector that all
                 heads share (implemented in block.py, since it has parameters)
    gain         o_i is multiplied by the mean of sqrt(i), the control of 'amplify':
                 the same size without the dependence on i
    damp         o_i is multiplied by the mean of sqrt(i / T_max), the control of 'attenuate'
    sink_logit   each head has a learned score that takes weight and gives no value, like in gpt-oss
                 (in attention.py; it begins at 0, where attention is 'softmax plus one')
    mask         position k attends only to itself and keeps the variance of one value
    variance     o_k becomes m + s (o_k - m), where m is its mean over channels
    norm         o_k becomes s o_k, the control of 'variance'

Here i counts from 1, and k, which is config.intervention_position, from 0. T_max is
config.length and s is config.intervention_strength. The cost is a few multiplications
per channel, and any attention kernel can be used.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig


def intervene(config: ModelConfig, aggregate_BTHK: jax.Array, value_BTGK: jax.Array,
              first: int) -> jax.Array:
  """The value aggregate after config.intervention ('rmsnorm' and 'sink_logit' excepted).

  `aggregate_BTHK` and `value_BTGK` are of T consecutive positions, from `first` on.
  """
  T, H = aggregate_BTHK.shape[1:3]
  position_T = first + np.arange(T)
  at_k_T11 = (position_T == config.intervention_position)[:, None, None]
  strength = config.intervention_strength
  match config.intervention:
    case 'amplify' | 'attenuate' | 'gain' | 'damp':
      factor_1T11 = factors(config, position_T)[None, :, None, None]
      return aggregate_BTHK * jnp.asarray(factor_1T11, aggregate_BTHK.dtype)
    case 'mask':
      # A position that attends only to itself aggregates its own value.
      value_BTHK = jnp.repeat(value_BTGK, H // value_BTGK.shape[2], axis=2)
      return jnp.where(at_k_T11, value_BTHK, aggregate_BTHK)
    case 'variance':
      mean_BT11 = aggregate_BTHK.mean(axis=(2, 3), keepdims=True)
      spread_BTHK = mean_BT11 + strength * (aggregate_BTHK - mean_BT11)
      return jnp.where(at_k_T11, spread_BTHK, aggregate_BTHK)
    case 'norm':
      return jnp.where(at_k_T11, strength * aggregate_BTHK, aggregate_BTHK)
  return aggregate_BTHK


def factors(config: ModelConfig, position_T: np.ndarray) -> np.ndarray:
  """The factor of o_i in 'amplify', 'attenuate', 'gain' and 'damp', at positions from 0."""
  is_amplified = config.intervention in ('amplify', 'gain')
  factor = lambda i: np.sqrt(i if is_amplified else i / config.length)
  if config.intervention in ('amplify', 'attenuate'):
    return factor(position_T + 1)
  return np.full(len(position_T), factor(np.arange(1, config.length + 1)).mean())


def intervene_weights(config: ModelConfig, weights_BHTS: jax.Array, first: int) -> jax.Array:
  """The weights of T queries from position `first` on; only 'mask' changes them."""
  if config.intervention != 'mask':
    return weights_BHTS
  T, S = weights_BHTS.shape[2:]
  at_k_T1 = (first + np.arange(T) == config.intervention_position)[:, None]
  of_k_S = jnp.asarray(np.arange(S) == config.intervention_position, weights_BHTS.dtype)
  return jnp.where(at_k_T1, of_k_S, weights_BHTS)
