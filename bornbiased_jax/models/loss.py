"""Next-token loss that never holds the logits of a whole batch."""

from collections.abc import Callable
import contextlib

import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import attention
from bornbiased_jax.models.transformer import Transformer, read

# Number of positions per sequence whose logits exist at the same time.
CHUNK = 128


def next_token_loss(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                    attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Mean cross-entropy over all predictions of a batch, in nats per token.

  For the arguments see `token_losses`. A network of dtype float32 multiplies in float32 on
  every device, also in the gradient: JAX's own default is bfloat16 on TPUs and TF32 on GPUs.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2', num_layers=1)
    >>> params, tokens = models.init_params(config, seed=42), jnp.arange(65)[None]
    >>> round(float(models.next_token_loss(config, params, tokens)))  # log(2048) is 7.6
    8
  """
  is_exact = config.dtype == 'float32'
  with jax.default_matmul_precision('highest') if is_exact else contextlib.nullcontext():
    return token_losses(config, params, tokens_BT, attend=attend).mean()


def token_losses(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                 attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Cross-entropy [B, T] in nats of each token, given the tokens before it.

  Args:
    config: the architecture.
    params: its parameters.
    tokens_BT: ids [B, T + 1], of which the first T are read and the last T predicted.
    attend: how attention is computed (attention.py).

  Raises:
    InputError: more than config.length positions are to be read.

  Cost: logits of at most CHUNK positions of each sequence exist at a time. The backward
  pass computes them a second time.
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

  def in_chunks(x_BT):
    """[B, T, …] → [number of whole chunks M, B, chunk, …], since scan runs over axis 0."""
    whole_BMC = x_BT[:, :T - rest].reshape(B, T // chunk, chunk, *x_BT.shape[2:])
    return jnp.swapaxes(whole_BMC, 0, 1)

  targets_BT = tokens_BT[:, 1:]
  _, losses_MBC = lax.scan(lambda _, part: (None, chunk_losses(*part)), None,
                           (in_chunks(hidden_BTD), in_chunks(targets_BT)))
  losses_BT = jnp.swapaxes(losses_MBC, 0, 1).reshape(B, T - rest)
  if rest:
    losses_BR = chunk_losses(hidden_BTD[:, -rest:], targets_BT[:, -rest:])
    losses_BT = jnp.concatenate((losses_BT, losses_BR), axis=1)
  return losses_BT
