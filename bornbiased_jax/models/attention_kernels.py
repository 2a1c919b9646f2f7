"""Attention by the kernels of accelerators, on one device or several, and which one to take.

cuDNN on GPUs and splash on TPUs have the signature that attention.py describes. They leave
windows, caps, slopes, sinks and a single last query to its `plain`.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.attention import TILE, plain
from bornbiased_jax.models.attention_tiles import tiled
from bornbiased_jax.models.sharding import batch_shards

# A block of the splash kernel consists of whole tiles. Blocks of 512 positions fit into the
# memory of a v5e for heads of up to 256 channels.
LARGEST_BLOCK = 512


def cudnn(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array,
          **limits: Any) -> jax.Array:
  """cuDNN's flash attention on one GPU, in 16 bits. Its gradient is reported to break in vmap."""
  B, T, H, K = query_BTHK.shape
  if T != key_BSGK.shape[1] or _given(limits):
    return plain(query_BTHK, key_BSGK, value_BSGK, **limits)
  out_BTHK = jax.nn.dot_product_attention(query_BTHK, key_BSGK, value_BSGK, is_causal=True,
                                          implementation='cudnn')
  return out_BTHK.reshape(B, T, H * K)


def splash(query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array, *,
           interpret: bool = False, **limits: Any) -> jax.Array:
  """JAX's splash attention on one TPU; with `interpret` its steps run as plain JAX, for tests."""
  B, T, H, K = query_BTHK.shape
  if T != key_BSGK.shape[1] or _given(limits):
    return plain(query_BTHK, key_BSGK, value_BSGK, **limits)
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


def _given(limits):
  return {name: limit for name, limit in limits.items() if limit is not None}


def splash_block(length: int) -> int:
  """Number of positions per block of the splash kernel, for sequences of `length`."""
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
  """

  kernel: Callable[..., jax.Array]
  mesh: Mesh

  def __call__(self, query_BTHK: jax.Array, key_BSGK: jax.Array, value_BSGK: jax.Array,
               **limits: Any) -> jax.Array:
    B, _, G, _ = key_BSGK.shape
    batch = ('data', 'fsdp') if B % batch_shards(self.mesh) == 0 else None
    heads = 'tensor' if G % self.mesh.shape['tensor'] == 0 else None
    spec = PartitionSpec(batch, None, heads)
    # Every device gets the limits as a whole, and what its own heads have.
    limits = _given(limits)
    places = {name: PartitionSpec(*[heads] * (name in ('slopes', 'sink'))) for name in limits}
    attend = jax.shard_map(
        lambda limits, *heads: self.kernel(*heads, **limits), mesh=self.mesh, out_specs=spec,
        check_vma=False, in_specs=(places, spec, spec, spec))
    return attend(limits, query_BTHK, key_BSGK, value_BSGK)


def choose(config: ModelConfig, length: int, mesh: Mesh,
           backend: str | None = None) -> Callable[..., jax.Array]:
  """The fastest attention for training on the devices of `mesh`.

  A backend is given for devices that are not present.
  """
  backend = backend or jax.default_backend()
  if backend == 'tpu' and length >= TILE:
    return Spread(splash, mesh)
  if (backend == 'gpu' and config.dtype == 'bfloat16'
      and _fits_cudnn(config.head_size, mesh.devices.flat[0])):
    return Spread(cudnn, mesh)
  kernel = tiled if backend == 'cpu' else plain
  # Without Spread the compiler would give every device the whole batch under fsdp.
  return Spread(kernel, mesh) if mesh.size > 1 else kernel


def _fits_cudnn(head_size, device):
  # 8.0 is Ampere. An AMD GPU has a name here ('gfx942') instead of a number.
  capability = getattr(device, 'compute_capability', '')
  is_new_enough = capability[:1].isdigit() and float(capability) >= 8
  return is_new_enough and head_size <= 128 and head_size % 8 == 0
