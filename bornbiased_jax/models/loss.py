"""Next-token loss that never holds the logits of a whole batch."""

from collections.abc import Callable
import contextlib
import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_id, check_ids
from bornbiased_jax.models import attention
from bornbiased_jax.models.batches import in_batches
from bornbiased_jax.models.layers import balance_loss
from bornbiased_jax.models.transformer import as_array, head_of, read, unembed

# Number of positions per sequence whose logits exist at the same time.
CHUNK = 128


def next_token_loss(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                    attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Mean cross-entropy over all predictions of a batch, in nats per token.

  For the arguments see `token_losses`. A network of dtype float32 multiplies in float32 on
  every device, also in the gradient: JAX's own default is bfloat16 on TPUs and TF32 on GPUs.
  A gradient can be taken in reverse mode only.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2', num_layers=1)
    >>> params, tokens = models.init_params(config, seed=42), jnp.arange(65)[None]
    >>> loss = jax.jit(models.next_token_loss, static_argnums=0)
    >>> round(float(loss(config, params, tokens)))  # log(2048) is 7.6
    8
  """
  return balanced_loss(config, params, tokens_BT, 0.0, attend=attend)[1]


def balanced_loss(config: ModelConfig, params: dict, tokens_BT: jax.Array, balance: float, *,
                  attend: Callable[..., jax.Array] = attention.plain
                  ) -> tuple[jax.Array, jax.Array]:
  """What training minimizes, and `next_token_loss`, which is a part of it.

  The other part is `layers.balance_loss` of the experts, times `balance`.
  """
  tokens_BT = as_array(tokens_BT)
  names = ('hidden', 'router_logits') if balance else ('hidden',)
  with _precision(config):
    found = read(config, params, tokens_BT[:, :-1], names, attend)
  loss = _mean_loss(config, head_of(config, params), found['hidden'], tokens_BT[:, 1:])
  return loss + balance * balance_loss(config, found['router_logits']) if balance else loss, loss


def _precision(config):
  is_exact = config.dtype == 'float32'
  return jax.default_matmul_precision('highest') if is_exact else contextlib.nullcontext()


def token_losses(config: ModelConfig, params: dict, tokens_BT: jax.Array, *,
                 attend: Callable[..., jax.Array] = attention.plain) -> jax.Array:
  """Cross-entropy [B, T] in nats of each token, given the tokens before it.

  Args:
    config: the architecture.
    params: its parameters.
    tokens_BT: ids [B, T + 1]; the first T are read and the last T predicted.
    attend: how attention is computed (attention.py).

  Raises:
    InputError: more than config.length positions are to be read.
  """
  tokens_BT = as_array(tokens_BT)
  hidden_BTD = read(config, params, tokens_BT[:, :-1], ('hidden',), attend)['hidden']
  return _losses(config, head_of(config, params), hidden_BTD, tokens_BT[:, 1:])


def strided_loss(config: ModelConfig, params: dict, ids: np.ndarray, length: int,
                 stride: int | None = None, start_id: int | None = None) -> float:
  """Mean loss of a text in nats per token; its exp is the perplexity of Table 7.

  The text is read in windows of `length` + 1 ids that start `stride` ids apart. All
  predictions of the first window count, and of every other window the last `stride`, so that
  no token is predicted twice. Ids behind the last whole window are left out.

  Args:
    config, params: the network.
    ids: the token ids of the text, in order.
    length: number of tokens that are read at once, T.
    stride: distance of windows in tokens; None means `length`, windows side by side.
    start_id: token id that every window begins with, instead of the one there; None: none.

  Raises:
    InputError: a stride that is not from 1 to length, a text shorter than one window, or a start
      token outside the vocabulary.
  """
  stride = length if stride is None else stride
  if not 1 <= stride <= length:
    raise InputError(f'stride={stride} is not from 1 to length={length}')
  if len(ids) <= length:
    raise InputError(f'{len(ids)} tokens are no window of length {length} with the token '
                     'after it')
  check_id('start_id', start_id, config.vocab_size)
  starts = np.arange(0, len(ids) - length, stride)
  windows_NT = np.lib.stride_tricks.sliding_window_view(np.asarray(ids), length + 1)[starts]
  windows_NT = windows_NT.astype(np.int32)
  if start_id is not None:  # As data.windows.begin does, which this room does not know.
    windows_NT[:, 0] = start_id
  check_ids(windows_NT, config.vocab_size)
  with jax.default_matmul_precision('highest'):
    losses_NT = in_batches(lambda index_B: _blocked_losses(config, params, windows_NT[index_B]),
                           *windows_NT.shape)
  total = (losses_NT[0].sum(dtype=np.float64)
           + losses_NT[1:, length - stride:].sum(dtype=np.float64))
  return float(total / (length + (len(starts) - 1) * stride))


@functools.partial(jax.jit, static_argnums=0)
def _blocked_losses(config, params, tokens_BT):
  return token_losses(config, params, tokens_BT, attend=attention.blocked)


def _losses(config, head_VD, hidden_BTD, target_BT):
  # Without the checkpoint a gradient would keep the logits of all chunks.
  of_chunk = jax.checkpoint(functools.partial(_chunk_losses, config))
  run = lambda _, part: (None, of_chunk(head_VD, *part))
  return _scan_chunks(run, None, (hidden_BTD, target_BT))[1]


def _chunk_losses(config, head_VD, hidden_BCD, target_BC):
  # Here and not around the callers, which may be traced after a context of theirs has ended.
  with _precision(config):
    logits_BCV = unembed(config, head_VD, hidden_BCD)
  target_logit_BC = jnp.take_along_axis(logits_BCV, target_BC[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits_BCV, axis=-1) - target_logit_BC


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mean_loss(config, head_VD, hidden_BTD, target_BT):
  return _losses(config, head_VD, hidden_BTD, target_BT).mean()


def _mean_loss_forward(config, head_VD, hidden_BTD, target_BT):
  """The loss and its gradient, for which the logits of a chunk are computed once, not twice."""

  def run(gradient_VD, part):
    hidden_BCD, target_BC = part
    losses_BC, pull = jax.vjp(
        lambda head_VD, hidden_BCD: _chunk_losses(config, head_VD, hidden_BCD, target_BC),
        head_VD, hidden_BCD)
    of_head_VD, of_hidden_BCD = pull(jnp.full_like(losses_BC, 1 / target_BT.size))
    return gradient_VD + of_head_VD, (losses_BC, of_hidden_BCD)

  of_head_VD, (losses_BT, of_hidden_BTD) = _scan_chunks(
      run, jnp.zeros_like(head_VD), (hidden_BTD, target_BT))
  return losses_BT.mean(), (of_head_VD, of_hidden_BTD)


def _mean_loss_backward(config, saved, gradient):
  del config
  scaled = lambda x: (gradient * x.astype(jnp.float32)).astype(x.dtype)
  return *map(scaled, saved), None


_mean_loss.defvjp(_mean_loss_forward, _mean_loss_backward)


def _scan_chunks(run, carry, arrays):
  """`lax.scan` over CHUNK positions at a time of arrays [B, T, …]; the last may be fewer."""
  T = arrays[0].shape[1]
  chunk = min(CHUNK, T)
  whole = T - T % chunk

  def in_chunks(x_BT):
    """[B, T, …] → [number of whole chunks M, B, chunk, …], since scan runs over axis 0."""
    return jnp.swapaxes(x_BT[:, :whole].reshape(len(x_BT), -1, chunk, *x_BT.shape[2:]), 0, 1)

  def join(x_MBC):
    return jnp.swapaxes(x_MBC, 0, 1).reshape(-1, whole, *x_MBC.shape[3:])

  carry, out = lax.scan(run, carry, tuple(map(in_chunks, arrays)))
  out = jax.tree.map(join, out)
  if whole < T:
    carry, rest = run(carry, tuple(x_BT[:, whole:] for x_BT in arrays))
    out = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), out, rest)
  return carry, out
