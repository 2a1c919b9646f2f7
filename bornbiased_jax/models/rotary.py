"""Rotary positions: queries and keys are turned by angles that grow with the position (RoPE)."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig, RopeScaling
from bornbiased_jax.models.attention import UNLIMITED


def rotate(config: ModelConfig, x_BTHK: jax.Array, first_position: int = 0,
           window: int | jax.Array | None = None) -> jax.Array:
  """Turns queries or keys in LLaMA's convention, which pairs channel j with j + rotary_size / 2.

  Angles are computed in float32; channels from config.rotary_size on stay. `window` is the layer's.
  """
  position_T1 = (first_position + jnp.arange(x_BTHK.shape[1], dtype=jnp.float32))[:, None]
  # All sequences and heads turn alike.
  frequency_R, size = _of_layer(config, window)
  angle_1T1R = (position_T1 * frequency_R[None])[None, :, None]
  cos_1T1R, sin_1T1R = size * jnp.cos(angle_1T1R), size * jnp.sin(angle_1T1R)
  half = config.rotary_size // 2
  a, b, rest = jnp.split(x_BTHK.astype(jnp.float32), (half, 2 * half), axis=-1)
  rotated = jnp.concatenate(
      (a * cos_1T1R - b * sin_1T1R, b * cos_1T1R + a * sin_1T1R, rest), axis=-1)
  return rotated.astype(x_BTHK.dtype)


def _of_layer(config, window):
  """The frequencies of a layer with this window, and what it multiplies turning channels by."""
  frequency_R = frequencies(config)
  size = float(config.rope_scaling.attention_factor) if config.rope_scaling else 1.0
  if config.window_rope_theta is None or window is None:
    return frequency_R, size
  local = dataclasses.replace(
      config, rope_theta=config.window_rope_theta, rope_scaling=None, window_rope_theta=None)
  is_local = window < UNLIMITED
  return jnp.where(is_local, frequencies(local), frequency_R), jnp.where(is_local, 1.0, size)


def frequencies(config: ModelConfig) -> jax.Array:
  """By how many radians each pair of channels turns per position, the fastest first [R]."""
  half = config.rotary_size // 2
  frequency_R = float(config.rope_theta) ** (-jnp.arange(half, dtype=jnp.float32) / half)
  scaling = config.rope_scaling
  if not scaling:
    return frequency_R
  slowed_R = frequency_R / float(scaling.factor)
  kept_R = _kept(scaling, frequency_R, config.rope_theta)
  return kept_R * frequency_R + (1 - kept_R) * slowed_R


def _kept(scaling: RopeScaling, frequency_R: jax.Array, theta: float) -> jax.Array:
  """How much of its own frequency each pair keeps, from 0 to 1."""
  if scaling.kind == 'linear':
    return jnp.zeros_like(frequency_R)
  if scaling.kind == 'llama3':
    turns_R = float(scaling.original_length) * frequency_R / (2 * math.pi)
    return jnp.clip((turns_R - float(scaling.slow)) / float(scaling.fast - scaling.slow), 0, 1)
  # The pair that turns so often has this number. As published, the ends of the ramp are whole
  # numbers, and the last is cut at the number of channels and not of pairs.
  half = len(frequency_R)
  number = lambda turns: half * math.log(
      scaling.original_length / (2 * math.pi * turns)) / math.log(theta)
  first, last = max(math.floor(number(scaling.fast)), 0), min(math.ceil(number(scaling.slow)),
                                                             2 * half - 1)
  ramp_R = (jnp.arange(half) - first) / (last - first or 0.001)
  return 1 - jnp.clip(ramp_R, 0, 1)
