"""Floating-point operations of a forward pass, and the rate at which a device performs them.

Together they give the least time that a forward pass can take.
"""

from collections.abc import Callable
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models.initialization import make_key


def forward_flops(config: ModelConfig, length: int, num_logits: int) -> int:
  """FLOPs of the matrix products when one sequence passes through the whole model.

  A multiplication and an addition count as two. Attention counts its full T x T
  square, with windows too; norms, activations and softmax count nothing. Of experts those count
  that are chosen, although `layers.mixture` computes all.

  Args:
    config: the architecture.
    length: number of positions, T.
    num_logits: number of positions whose logits are computed: 1 for only the last
      position, T for all.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> models.forward_flops(configs.get('nano_gpt2'), length=64, num_logits=1)
    11099825664
  """
  query_width = config.num_heads * config.head_size
  key_width = config.num_kv_heads * config.head_size
  attention = 2 * config.width * (query_width + key_width) + 2 * length * query_width
  units = config.experts_per_token * config.mlp_width + config.shared_mlp_width
  mlp = (3 if config.gated_mlp else 2) * config.width * units
  if config.num_experts > 1:
    mlp += config.width * (config.num_experts + (config.shared_mlp_width > 0))
  per_position = {'full': attention + mlp, 'attention_only': attention, 'mlp_only': mlp}
  blocks = length * config.num_layers * per_position[config.sublayers]
  return 2 * (blocks + num_logits * config.width * config.vocab_size)


def matmul(dtype: str) -> tuple[Callable[[], jax.Array], int]:
  """A large matrix product to be timed, at the highest rate of the device, and its FLOPs."""
  size = matmul_size()
  a, b = (jax.random.normal(make_key(i), (size, size), dtype) for i in range(2))
  product = jax.jit(jnp.matmul)
  return lambda: product(a, b), 2 * size**3


def matmul_size() -> int:
  """The number of rows of the square matrices of `matmul`."""
  return 2048 if jax.default_backend() == 'cpu' else 8192


@functools.lru_cache
def matmul_rate(dtype: str, rounds: int = 5) -> float:
  """FLOPs per second of `matmul`, measured on one device as the median of `rounds` runs."""
  product, num_flops = matmul(dtype)
  jax.block_until_ready(product())  # Compiles.
  seconds = []
  for _ in range(rounds):
    start = time.perf_counter()
    jax.block_until_ready(product())
    seconds.append(time.perf_counter() - start)
  return num_flops / float(np.median(seconds))
