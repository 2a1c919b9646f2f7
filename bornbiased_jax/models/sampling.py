"""What a model says: ids drawn one after another from its own predictions."""

import functools
import math

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count, check_ids
from bornbiased_jax.models import attention
from bornbiased_jax.models.transformer import head_of, read, unembed


def sample(config: ModelConfig, params: dict, tokens: np.ndarray | jax.Array, num_tokens: int,
           key: jax.Array, temperature: float = 1.0, num_ids: int | None = None) -> jax.Array:
  """Continues sequences of token ids.

  A model reads at most config.length ids. A longer text passes through a window of
  that many, whose first id has position 0.

  Args:
    config: the architecture.
    params: its parameters.
    tokens: ids [B, T] to begin with, T at least 1.
    num_tokens: how many ids to add to each sequence.
    key: from `jax.random.key`. At temperature 0 it does not matter.
    temperature: divides the logits. 1 draws from the model's own probabilities, 0 takes
      the likeliest id, the first one if there are several.
    num_ids: ids from this one on are never drawn, for a vocabulary that is larger than
      its tokenizer's. By default all ids may be.

  Returns:
    The new ids [B, num_tokens] int32, without those to begin with.

  Raises:
    InputError: there is no id to begin with, one is outside the vocabulary, or a number
      is not positive (the temperature: negative or not finite).

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params = models.init_params(config, seed=42)
    >>> models.sample(config, params, jnp.array([[5, 7, 11]]), 4, jax.random.key(0)).shape
    (1, 4)
  """
  tokens_BT = np.asarray(tokens)
  _check(config, tokens_BT, num_tokens, temperature)
  if num_ids is not None:
    check_count('num_ids', num_ids)
  length = min(config.length, tokens_BT.shape[1] + num_tokens)
  known_BT = tokens_BT[:, -length:]
  filled = known_BT.shape[1]
  # No query sees the padding, which lies after all that is known.
  window_BW = np.pad(known_BT.astype(np.int32), ((0, 0), (0, length - filled)))
  # By default TPUs and GPUs multiply float32 matrices in bfloat16 and TF32.
  with jax.default_matmul_precision('highest'):
    return _continue(config, num_tokens, num_ids, params, window_BW, filled, key, temperature)


def _check(config, tokens_BT, num_tokens, temperature):
  check_ids(tokens_BT, config.vocab_size)
  check_count('num_tokens', num_tokens)
  if not 0 <= temperature < math.inf:
    raise InputError(f'temperature={temperature} is not a number of at least 0')


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _continue(config, num_tokens, num_ids, params, window_BW, filled, key, temperature):
  def step(state, i):
    window_BW, filled = state
    logits_BV = _next_logits(config, params, window_BW, filled)[:, :num_ids]
    # The largest of logits / temperature + Gumbel noise is distributed as their softmax.
    # Multiplied by the temperature, this is the argmax itself at 0.
    noise_BV = jax.random.gumbel(jax.random.fold_in(key, i), logits_BV.shape, mode='low')
    drawn_B = jnp.argmax(logits_BV + temperature * noise_BV, axis=-1)
    return _append(window_BW, filled, drawn_B), drawn_B

  _, drawn_NB = lax.scan(step, (window_BW, jnp.int32(filled)), jnp.arange(num_tokens))
  return drawn_NB.T


def _next_logits(config, params, window_BW, filled):
  """Logits [B, V] of the id that follows the first `filled` ids of each window."""
  hidden_BWD = read(config, params, window_BW, ('hidden',), attention.blocked)['hidden']
  return unembed(config, head_of(config, params), hidden_BWD[:, filled - 1])


def _append(window_BW, filled, drawn_B):
  """The windows with one more id, instead of the oldest if they are full."""
  length = window_BW.shape[1]
  window_BW = jnp.where(filled == length, jnp.roll(window_BW, -1, axis=1), window_BW)
  filled = jnp.minimum(filled + 1, length)
  return window_BW.at[:, filled - 1].set(drawn_B), filled
