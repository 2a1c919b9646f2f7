"""Next-token loss, without the logits of a whole batch in memory."""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax import attention
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.transformer import Transformer

CHUNK = 128


def next_token_loss(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                    attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Mean cross-entropy, in nats a token, of each token given those before it.

  Args:
    config: the architecture.
    params: its parameters.
    tokens_BT: ids [B, T + 1]; the first T are read, the last T predicted.
    attend: how attention is computed (attention.py).

  Cost: logits of at most CHUNK positions exist at a time; the backward pass
  computes them once more.
  """
  model = Transformer(config, attend)
  hidden_BTD = model.apply({'params': params}, tokens_BT[:, :-1], ('hidden',), method='read')['hidden']
  B, T, D = hidden_BTD.shape
  chunk, rest = min(CHUNK, T), T % min(CHUNK, T)

  @jax.checkpoint
  def chunk_loss(hidden_BCD, target_BC):
    logits_BCV = model.apply({'params': params}, hidden_BCD, method='unembed')
    target_logit_BC = jnp.take_along_axis(logits_BCV, target_BC[..., None], axis=-1)[..., 0]
    return jnp.sum(jax.nn.logsumexp(logits_BCV, axis=-1) - target_logit_BC)

  targets_BT = tokens_BT[:, 1:]
  split = lambda x: jnp.swapaxes(x[:, :T - rest].reshape(B, T // chunk, chunk, *x.shape[2:]), 0, 1)
  add = lambda total, part: (total + chunk_loss(*part), None)
  total, _ = lax.scan(add, jnp.float32(0), (split(hidden_BTD), split(targets_BT)))
  if rest:
    total += chunk_loss(hidden_BTD[:, -rest:], targets_BT[:, -rest:])
  return total / (B * T)
