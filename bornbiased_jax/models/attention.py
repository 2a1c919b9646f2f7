"""Causal attention: written out, by cuDNN's kernel on GPUs, and by JAX's splash kernel on TPUs.

All are attend(query_BTHK, key_BSGK, value_BSGK) → value aggregate [B, T, H K],
heads concatenated, where the queries are the last T of S positions and G divides
H. They differ in memory, O(T²) or O(T), and by rounding. Shapes as in transformer.py.
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

# The splash kernel's blocks are whole tiles of 128 positions; of 512 they fit a v5e for heads of up to 256.
TILE = 128
LARGEST_BLOCK = 512

# What `watched` can tell of the weights (transformer.READS).
WATCHED = ('attention_weights', 'attention_received')


def attention_weights(query_BTHK: jax.Array, key_BSGK: jax.Array, first: jax.Array | None = None) -> jax.Array:
  """Causal softmax weights [B, H, T, S] in float32; the queries are of positions first, … (None: the last T of S)."""
  (B, T, H, K), (S, G) = query_BTHK.shape, key_BSGK.shape[1:3]
  first = S - T if first is None else first
  query_BTGNK = query_BTHK.reshape(B, T, G, H // G, K)
  scores_BGNTS = jnp.einsum('BTGNK,BSGK->BGNTS', query_BTGNK, key_BSGK,
                            preferred_element_type=jnp.float32) / math.sqrt(K)
  causal_TS = jnp.arange(S) <= first + jnp.arange(T)[:, None]
  return nn.softmax(jnp.where(causal_TS, scores_BGNTS, -jnp.inf)).reshape(B, H, T, S)


def aggregate_values(weights_BHTS: jax.Array, value_BSGK: jax.Array) -> jax.Array:
  """Value aggregate o_i = sum_j a_ij v_j, heads concatenated: [B, T, H K]."""
  (B, H, T, S), (G, K) = weights_BHTS.shape, value_BSGK.shape[2:]
  weights_BGNTS = weights_BHTS.reshape(B, G, H // G, T, S).astype(value_BSGK.dtype)
  return jnp.einsum('BGNTS,BSGK->BTGNK', weights_BGNTS, value_BSGK).reshape(B, T, H * K)


def streamed(query_BTHK: jax.Array, key_BTGK: jax.Array, value_BTGK: jax.Array,
             change: Callable[[jax.Array, int], jax.Array] = lambda weights_BHTS, first: weights_BHTS,
             block: int = TILE) -> tuple[jax.Array, jax.Array]:
  """Attention a block of queries at once, so that no [T, T] matrix exists.

  Args:
    query_BTHK: of all T positions; keys and values likewise.
    change: of the weights [B, H, block, T] of queries first, first + 1, …
    block: queries at once.

  Returns:
    Value aggregate [B, T, H K], and the mean weight [B, H, T] on each
    position, over the queries from it on, in float32.
  """
  B, T, H, K = query_BTHK.shape
  block = min(block, T)
  padded_BTHK = jnp.pad(query_BTHK, ((0, 0), (0, -T % block), (0, 0), (0, 0)))
  query_MBTHK = jnp.moveaxis(padded_BTHK.reshape(B, -1, block, H, K), 1, 0)

  def of_block(total_BHS, part):
    first, query_BTHK = part
    weights_BHTS = change(attention_weights(query_BTHK, key_BTGK, first), first)
    is_padding_T1 = first + jnp.arange(block)[:, None] >= T
    total_BHS += jnp.where(is_padding_T1, 0, weights_BHTS).sum(axis=2)
    return total_BHS, aggregate_values(weights_BHTS, value_BTGK)

  starts_M = block * jnp.arange(len(query_MBTHK))
  total_BHT, aggregate_MBTF = lax.scan(of_block, jnp.zeros((B, H, T)), (starts_M, query_MBTHK))
  aggregate_BTF = jnp.moveaxis(aggregate_MBTF, 0, 1).reshape(B, -1, H * K)[:, :T]
  return aggregate_BTF, total_BHT / (T - jnp.arange(T))


def watched(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, names: tuple[str, ...],
            change: Callable[[jax.Array, int], jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Attention whose weights are read: the value aggregate [B, T, H K], and at least those of WATCHED in `names`.

  All weights are in memory only for a reader of 'attention_weights'; for
  `change` see `streamed`, which serves the others.
  """
  if 'attention_weights' not in names:
    aggregate_BTF, received_BHT = streamed(query_BTHK, key_BSGK, value_BSGK, change)
    return aggregate_BTF, {'attention_received': received_BHT}
  T, S = query_BTHK.shape[1], key_BSGK.shape[1]
  weights_BHTS = change(attention_weights(query_BTHK, key_BSGK), S - T)
  received_BHS = weights_BHTS.sum(axis=2) / (S - jnp.arange(S))
  return (aggregate_values(weights_BHTS, value_BSGK),
          {'attention_weights': weights_BHTS, 'attention_received': received_BHS})


def plain(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array) -> jax.Array:
  """By the definition, with all weights in memory; the same on every backend, and the model's default."""
  return aggregate_values(attention_weights(query_BTHK, key_BSGK), value_BSGK)


def blocked(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array) -> jax.Array:
  """`plain` a block of queries at once: exact in float32 and in O(T) memory on every backend."""
  if query_BTHK.shape[1] != key_BSGK.shape[1]:
    return plain(query_BTHK, key_BSGK, value_BSGK)
  return streamed(query_BTHK, key_BSGK, value_BSGK)[0]


def cudnn(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array) -> jax.Array:
  """cuDNN's flash attention on one GPU, in bfloat16 or float16. Not for vmap: its gradient is reported to break."""
  B, T, H, K = query_BTHK.shape
  if T != key_BSGK.shape[1]:
    return plain(query_BTHK, key_BSGK, value_BSGK)
  out_BTHK = jax.nn.dot_product_attention(query_BTHK, key_BSGK, value_BSGK, is_causal=True, implementation='cudnn')
  return out_BTHK.reshape(B, T, H * K)


def splash(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *, interpret: bool = False) -> jax.Array:
  """JAX's splash attention on one TPU; with `interpret`, its steps in plain JAX on any backend, for tests."""
  B, T, H, K = query_BTHK.shape
  if T != key_BSGK.shape[1]:
    return plain(query_BTHK, key_BSGK, value_BSGK)
  block = splash_block(T)
  # Padding comes last, where no query sees it.
  heads_first = lambda x: jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, -T % block), (0, 0)))
  # The kernel does not scale; in float32, as 1/sqrt(K) is no bfloat16.
  query_BTHK = (query_BTHK.astype(jnp.float32) / math.sqrt(K)).astype(query_BTHK.dtype)
  kernel = _splash_kernel(H, T + -T % block, block, interpret)
  out_BHTK = jax.vmap(kernel)(heads_first(query_BTHK), heads_first(key_BSGK), heads_first(value_BSGK))
  return jnp.swapaxes(out_BHTK, 1, 2)[:, :T].reshape(B, T, H * K)


def splash_block(length: int) -> int:
  """Positions a block: whole tiles, as few blocks as there can be, and those with the least padding."""
  num_blocks = -(-length // LARGEST_BLOCK)
  return TILE * -(-length // (TILE * num_blocks))


def _splash_kernel(num_heads, length, block, interpret):
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
  mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((length, length))] * num_heads)
  sizes = ('block_q', 'block_kv', 'block_q_dkv', 'block_kv_dkv', 'block_q_dq', 'block_kv_dq')
  return splash_attention_kernel.make_splash_mha(
      mask, block_sizes=splash_attention_kernel.BlockSizes(**dict.fromkeys(sizes, block)),
      head_shards=1, q_seq_shards=1, interpret=interpret)


@dataclasses.dataclass(frozen=True)
class Spread:
  """A kernel of one device on all of a mesh, each for its own sequences and heads.

  Left to itself the compiler cannot partition a kernel that it does not see into.

  Args:
    kernel: `splash`, `cudnn` or `plain`.
    mesh: of axes sharding.AXES; sequences are spread over 'data' and 'fsdp',
      heads over 'tensor'. A dimension that they do not divide stays whole.
  """

  kernel: Callable[..., jax.Array]
  mesh: Mesh

  def __call__(self, query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array) -> jax.Array:
    (B, _, G, _), size = key_BSGK.shape, self.mesh.shape
    batch = ('data', 'fsdp') if B % (size['data'] * size['fsdp']) == 0 else None
    spec = PartitionSpec(batch, None, 'tensor' if G % size['tensor'] == 0 else None)
    attend = jax.shard_map(self.kernel, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return attend(query_BTHK, key_BSGK, value_BSGK)


def choose(config: ModelConfig, length: int, mesh: Mesh, backend: str | None = None) -> Callable[..., jax.Array]:
  """The fastest attention for training on sequences of `length` positions on the devices of `mesh`.

  Args:
    config: the architecture, and what it computes in.
    length: positions a sequence, T.
    mesh: of axes sharding.AXES.
    backend: 'cpu' | 'gpu' | 'tpu'; None: the one at hand. Name it to compile for another.
  """
  backend = backend or jax.default_backend()
  if backend == 'tpu' and length >= TILE:
    return Spread(splash, mesh)
  if backend == 'gpu' and config.dtype == 'bfloat16' and _fits_cudnn(config.head_size, mesh.devices.flat[0]):
    return Spread(cudnn, mesh)
  # Under fsdp the compiler would else give every device the whole batch.
  return Spread(plain, mesh) if mesh.size > 1 else plain


def _fits_cudnn(head_size, device):
  # From Ampere on; an AMD GPU has a name here ('gfx942'), not a number.
  capability = getattr(device, 'compute_capability', '')
  return head_size <= 128 and head_size % 8 == 0 and capability[:1].isdigit() and float(capability) >= 8
