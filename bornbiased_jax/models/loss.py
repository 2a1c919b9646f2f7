"""Next-token loss, without the logits of a whole batch in memory."""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import attention
from bornbiased_jax.models.transformer import Transformer, read

CHUNK = 128


def next_token_loss(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                    attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Mean of `token_losses`."""
  return token_losses(config, params, tokens_BT, attend=attend).mean()


def token_losses(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                 attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Cross-entropy [B, T], in nats, of each token given those before it.

  Args:
    config: the architecture.
    params: its parameters.
    tokens_BT: ids [B, T + 1]; the first T are read, the last T predicted.
    attend: how attention is computed (attention.py).

  Cost: logits of at most CHUNK positions exist at a time; the backward pass
  computes them once more.
  """
  model = Transformer(config, attend)
  hidden_BTD = read(config, params, tokens_BT[:, :-1], ('hidden',), attend)['hidden']
  B, T, D = hidden_BTD.shape
  chunk, rest = min(CHUNK, T), T % min(CHUNK, T)

  @jax.checkpoint
  def chunk_losses(hidden_BCD, target_BC):
    logits_BCV = model.apply({'params': params}, hidden_BCD, method='unembed')
    target_logit_BC = jnp.take_along_axis(logits_BCV, target_BC[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BCV, axis=-1) - target_logit_BC

  targets_BT = tokens_BT[:, 1:]
  split = lambda x: jnp.swapaxes(x[:, :T - rest].reshape(B, T // chunk, chunk, *x.shape[2:]), 0, 1)
  _, losses_MBC = lax.scan(lambda _, part: (None, chunk_losses(*part)), None, (split(hidden_BTD), split(targets_BT)))
  losses_BT = jnp.swapaxes(losses_MBC, 0, 1).reshape(B, T - rest)
  if rest:
    losses_BT = jnp.concatenate((losses_BT, chunk_losses(hidden_BTD[:, -rest:], targets_BT[:, -rest:])), axis=1)
  return losses_BT
