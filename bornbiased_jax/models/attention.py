"""Causal attention: by the definition, in blocks, by head, by cuDNN on GPUs and splash on TPUs.

The functions `plain`, `blocked`, `by_head`, `cudnn` and `splash` all have the signature

    attend(query_BTHK, key_BSGK, value_BSGK, *, window, cap) → value aggregate [B, T, H K]

with the heads concatenated. The queries belong to the last T of S positions, and the
number of key/value heads G divides the number of query heads H. A query sees the last
`window` positions up to its own, and scores s become cap tanh(s / cap); by default there
is neither. The functions differ by rounding, and in memory: O(T²) for `plain`, O(T) for
the others, except that `cudnn` and `splash` leave windows and caps to `plain`. The
letters of shapes are explained in transformer.py.
"""

from collections.abc import Callable
import dataclasses
import math

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.sharding import batch_shards

# A block of the splash kernel consists of whole tiles of 128 positions. Blocks of 512
# fit into the memory of a v5e for heads of up to 256 channels.
TILE = 128
LARGEST_BLOCK = 512

# The window of a layer that has none, larger than any sequence.
UNLIMITED = 2**30
Window = int | jax.Array | None

# The intermediates of transformer.READS that need the attention weights.
WATCHED = ('attention_weights', 'attention_received')


def windows(config: ModelConfig) -> jax.Array | None:
  """The window [L] of each layer, UNLIMITED where it has none; None if no layer has one."""
  if not config.windows:
    return None
  return jnp.array([min(window or UNLIMITED, UNLIMITED) for window in config.windows], jnp.int32)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
  """x with a smooth bound, cap tanh(x / cap); x itself if there is none."""
  return x if cap is None else cap * jnp.tanh(x / cap)


def attention_weights(query_BTHK: jax.Array, key_BSGK: jax.Array,
                      first: int | jax.Array | None = None, *, window: Window = None,
                      cap: float | None = None) -> jax.Array:
  """Causal softmax weights [B, H, T, S] in float32.

  Args:
    query_BTHK: queries at consecutive positions.
    key_BSGK: keys at positions 0 to S - 1.
    first: position of the first query. None means that the queries belong to the
      last T of the S positions.
    window: how many positions a query sees, its own included; None for all.
    cap: bound of the scores (`soft_cap`).

  Example:
    >>> from jax import numpy as jnp
    >>> zeros = jnp.zeros((1, 2, 1, 4))  # Equal scores make the weights uniform.
    >>> attention_weights(zeros, zeros).tolist()
    [[[[1.0, 0.0], [0.5, 0.5]]]]
  """
  (B, T, H, K), (S, G) = query_BTHK.shape, key_BSGK.shape[1:3]
  first = S - T if first is None else first
  query_BTGNK = query_BTHK.reshape(B, T, G, H // G, K)
  scores_BGNTS = jnp.einsum('BTGNK,BSGK->BGNTS', query_BTGNK, key_BSGK,
                            preferred_element_type=jnp.float32) / math.sqrt(K)
  visible_TS = jnp.arange(S)[None] <= first + jnp.arange(T)[:, None]
  if window is not None:
    # Padding queries behind the last position see what it sees: without any key, their
    # weights would be NaN, and so would gradients.
    position_T1 = jnp.minimum(first + jnp.arange(T), S - 1)[:, None]
    visible_TS &= jnp.arange(S)[None] > position_T1 - window
  scores_BGNTS = soft_cap(scores_BGNTS, cap)
  return nn.softmax(jnp.where(visible_TS, scores_BGNTS, -jnp.inf)).reshape(B, H, T, S)


def aggregate_values(weights_BHTS: jax.Array, value_BSGK: jax.Array) -> jax.Array:
  """The value aggregate o_i = sum_j a_ij v_j [B, T, H K], with the heads concatenated."""
  (B, H, T, S), (G, K) = weights_BHTS.shape, value_BSGK.shape[2:]
  weights_BGNTS = weights_BHTS.reshape(B, G, H // G, T, S).astype(value_BSGK.dtype)
  return jnp.einsum('BGNTS,BSGK->BTGNK', weights_BGNTS, value_BSGK).reshape(B, T, H * K)


def streamed(query_BTHK: jax.Array, key_BTGK: jax.Array, value_BTGK: jax.Array,
             change: Callable[[jax.Array, int], jax.Array] = lambda weights, first: weights,
             block: int = TILE, *, window: Window = None,
             cap: float | None = None) -> tuple[jax.Array, jax.Array]:
  """Attention computed for one block of queries at a time, so that no [T, T] matrix exists.

  Args:
    query_BTHK: queries of all T positions.
    key_BTGK: keys of the same positions.
    value_BTGK: values of the same positions.
    change: a function (weights [B, H, block, T], first) → weights, applied to the
      weights of each block of queries, of which `first` is the first position.
    block: number of queries per block.
    window, cap: as in `attention_weights`.

  Returns:
    The value aggregate [B, T, H K], and the mean weight [B, H, T] on each position
    in float32. The mean is over the queries that see the position: itself and later.
  """
  B, T, H, K = query_BTHK.shape
  block = min(block, T)
  # -T % block more queries make whole blocks; what they give is dropped below.
  padded_BTHK = jnp.pad(query_BTHK, ((0, 0), (0, -T % block), (0, 0), (0, 0)))
  query_MBTHK = jnp.moveaxis(padded_BTHK.reshape(B, -1, block, H, K), 1, 0)

  def of_block(total_BHS, part):
    first, query_BTHK = part
    weights_BHTS = attention_weights(query_BTHK, key_BTGK, first, window=window, cap=cap)
    weights_BHTS = change(weights_BHTS, first)
    is_padding_T1 = first + jnp.arange(block)[:, None] >= T
    total_BHS += jnp.where(is_padding_T1, 0, weights_BHTS).sum(axis=2)
    return total_BHS, aggregate_values(weights_BHTS, value_BTGK)

  starts_M = block * jnp.arange(len(query_MBTHK))
  total_BHT, aggregate_MBTF = lax.scan(of_block, jnp.zeros((B, H, T)), (starts_M, query_MBTHK))
  aggregate_BTF = jnp.moveaxis(aggregate_MBTF, 0, 1).reshape(B, -1, H * K)[:, :T]
  return aggregate_BTF, total_BHT / _num_viewers(T, window)[None, None]


def _num_viewers(length, window):
  """How many queries see each of `length` positions: those of itself and later ones."""
  later_T = length - jnp.arange(length)
  return later_T if window is None else jnp.minimum(later_T, window)


def watched(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array,
            names: tuple[str, ...], change: Callable[[jax.Array, int], jax.Array], *,
            window: Window = None, cap: float | None = None,
            ) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Attention for a reader who also wants the weights, or their means.

  Args:
    query_BTHK, key_BSGK, value_BSGK: as for every function of this module.
    names: what is read. All weights are in memory at once only if
      'attention_weights' is among them.
    change: what to do to the weights, as in `streamed`.
    window, cap: as in `attention_weights`.

  Returns:
    The value aggregate [B, T, H K], and a dict that has at least those
    intermediates of WATCHED that are in `names`.
  """
  if 'attention_weights' not in names:
    aggregate_BTF, received_BHT = streamed(query_BTHK, key_BSGK, value_BSGK, change,
                                           window=window, cap=cap)
    return aggregate_BTF, {'attention_received': received_BHT}
  T, S = query_BTHK.shape[1], key_BSGK.shape[1]
  weights_BHTS = attention_weights(query_BTHK, key_BSGK, window=window, cap=cap)
  weights_BHTS = change(weights_BHTS, S - T)
  received_BHS = weights_BHTS.sum(axis=2) / _num_viewers(S, window)[None, None]
  return (aggregate_values(weights_BHTS, value_BSGK),
          {'attention_weights': weights_BHTS, 'attention_received': received_BHS})


def plain(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
          window: Window = None, cap: float | None = None) -> jax.Array:
  """Attention by its definition, with all weights in memory.

  It is the model's default, and the same on every backend.
  """
  weights_BHTS = attention_weights(query_BTHK, key_BSGK, window=window, cap=cap)
  return aggregate_values(weights_BHTS, value_BSGK)


def blocked(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
            window: Window = None, cap: float | None = None) -> jax.Array:
  """`plain` for one block of queries at a time.

  It computes in full float32 and O(T) memory on every backend.
  """
  # Fewer queries than keys are a last position alone, which needs no blocks.
  if query_BTHK.shape[1] != key_BSGK.shape[1]:
    return plain(query_BTHK, key_BSGK, value_BSGK, window=window, cap=cap)
  return streamed(query_BTHK, key_BSGK, value_BSGK, window=window, cap=cap)[0]


def by_head(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
            window: Window = None, cap: float | None = None) -> jax.Array:
  """`plain` for one key/value head of one sequence at a time, whose weights fit a CPU's cache.

  The backward pass computes the weights again, so that memory is O(T), but for the O(T²) of one
  head. On a CPU the gradient takes half the time of `plain`'s at T = 512, two thirds at T = 128.
  """
  (B, T, H, K), (S, G) = query_BTHK.shape, key_BSGK.shape[1:3]
  one = jax.checkpoint(lambda heads: plain(*heads, window=window, cap=cap))

  def heads_first(x, positions):
    x = x.reshape(B, positions, G, -1, K)
    return jnp.swapaxes(x, 1, 2).reshape(B * G, 1, positions, -1, K)

  heads = heads_first(query_BTHK, T), heads_first(key_BSGK, S), heads_first(value_BSGK, S)
  aggregate_BGTF = lax.map(one, heads).reshape(B, G, T, -1)
  return jnp.swapaxes(aggregate_BGTF, 1, 2).reshape(B, T, H * K)


def cudnn(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
          window: Window = None, cap: float | None = None) -> jax.Array:
  """cuDNN's flash attention on one GPU, in bfloat16 or float16.

  Do not use it under vmap: its gradient is reported to break there.
  """
  B, T, H, K = query_BTHK.shape
  if T != key_BSGK.shape[1] or window is not None or cap is not None:
    return plain(query_BTHK, key_BSGK, value_BSGK, window=window, cap=cap)
  out_BTHK = jax.nn.dot_product_attention(query_BTHK, key_BSGK, value_BSGK, is_causal=True,
                                          implementation='cudnn')
  return out_BTHK.reshape(B, T, H * K)


def splash(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
           window: Window = None, cap: float | None = None, interpret: bool = False) -> jax.Array:
  """JAX's splash attention on one TPU.

  With `interpret` the kernel's steps run as plain JAX on any backend, for tests.
  """
  B, T, H, K = query_BTHK.shape
  if T != key_BSGK.shape[1] or window is not None or cap is not None:
    return plain(query_BTHK, key_BSGK, value_BSGK, window=window, cap=cap)
  block = splash_block(T)
  # The kernel wants heads before positions. Padding comes last, where no query sees it.
  padding = ((0, 0), (0, 0), (0, -T % block), (0, 0))
  heads_first = lambda x: jnp.pad(jnp.swapaxes(x, 1, 2), padding)
  # The kernel does not divide scores by sqrt(K). The division is done in float32,
  # because 1/sqrt(K) would be rounded in bfloat16.
  query_BTHK = (query_BTHK.astype(jnp.float32) / math.sqrt(K)).astype(query_BTHK.dtype)
  kernel = _splash_kernel(H, T + -T % block, block, interpret)
  out_BHTK = jax.vmap(kernel)(*map(heads_first, (query_BTHK, key_BSGK, value_BSGK)))
  return jnp.swapaxes(out_BHTK, 1, 2)[:, :T].reshape(B, T, H * K)


def splash_block(length: int) -> int:
  """Number of positions per block of the splash kernel, for sequences of `length`.

  Blocks are whole tiles. Among the choices with the fewest blocks it is the one with
  the least padding.

  Example:
    >>> splash_block(1024), splash_block(600)
    (512, 384)
  """
  num_blocks = -(-length // LARGEST_BLOCK)
  return TILE * -(-length // (TILE * num_blocks))


def _splash_kernel(num_heads, length, block, interpret):
  # Imported here, because only TPUs need it and importing Pallas takes time.
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
  mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * num_heads)
  sizes = ('block_q', 'block_kv', 'block_q_dkv', 'block_kv_dkv', 'block_q_dq', 'block_kv_dq')
  return kernel.make_splash_mha(
      mask, block_sizes=kernel.BlockSizes(**dict.fromkeys(sizes, block)),
      head_shards=1, q_seq_shards=1, interpret=interpret)


@dataclasses.dataclass(frozen=True)
class Spread:
  """Runs a kernel made for one device on all devices of a mesh.

  Each device computes attention for its own sequences and heads. The compiler cannot
  divide that work by itself, because it does not see into a kernel.

  Args:
    kernel: one of the functions of this module.
    mesh: devices on the axes sharding.AXES. Sequences are spread over 'data' and
      'fsdp', heads over 'tensor'; a dimension that the axes do not divide is not spread.
  """

  kernel: Callable[..., jax.Array]
  mesh: Mesh

  def __call__(self, query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
               window: Window = None, cap: float | None = None) -> jax.Array:
    B, _, G, _ = key_BSGK.shape
    batch = ('data', 'fsdp') if B % batch_shards(self.mesh) == 0 else None
    heads = 'tensor' if G % self.mesh.shape['tensor'] == 0 else None
    spec = PartitionSpec(batch, None, heads)
    limits = {name: value for name, value in (('window', window), ('cap', cap))
              if value is not None}
    run = lambda limits, *heads: self.kernel(*heads, **limits)
    # Every device gets the limits as a whole.
    attend = jax.shard_map(run, mesh=self.mesh, in_specs=(PartitionSpec(), spec, spec, spec),
                           out_specs=spec, check_vma=False)
    return attend(limits, query_BTHK, key_BSGK, value_BSGK)


def choose(config: ModelConfig, length: int, mesh: Mesh,
           backend: str | None = None) -> Callable[..., jax.Array]:
  """The fastest attention for training on the devices of `mesh`.

  Args:
    config: the architecture and the type in which it computes.
    length: number of positions per sequence, T.
    mesh: devices on the axes sharding.AXES.
    backend: 'cpu' | 'gpu' | 'tpu', for compiling for devices that are not present.
      None means the backend of this process.
  """
  backend = backend or jax.default_backend()
  if backend == 'tpu' and length >= TILE:
    return Spread(splash, mesh)
  if (backend == 'gpu' and config.dtype == 'bfloat16'
      and _fits_cudnn(config.head_size, mesh.devices.flat[0])):
    return Spread(cudnn, mesh)
  kernel = by_head if backend == 'cpu' else plain
  # Without Spread the compiler would give every device the whole batch under fsdp.
  return Spread(kernel, mesh) if mesh.size > 1 else kernel


def _fits_cudnn(head_size, device):
  # 8.0 is Ampere. An AMD GPU has a name here ('gfx942') instead of a number.
  capability = getattr(device, 'compute_capability', '')
  is_new_enough = capability[:1].isdigit() and float(capability) >= 8
  return is_new_enough and head_size <= 128 and head_size % 8 == 0
