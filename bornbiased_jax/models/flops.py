"""How many floating-point operations a forward pass is, and how fast they can be: the floor under every time."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig


def forward_flops(config: ModelConfig, length: int, num_logits: int) -> int:
  """Matrix-product FLOPs of one sequence through the whole model.

  A multiply and an add count two. Attention counts its full T x T square;
  norms, activations and softmax count nothing.

  Args:
    config: the architecture.
    length: positions, T.
    num_logits: positions whose logits are computed (1: the last; T: all).
  """
  query_width = config.num_heads * config.head_size
  key_width = config.num_kv_heads * config.head_size
  attention = 2 * config.width * (query_width + key_width) + 2 * length * query_width
  mlp = (3 if config.gated_mlp else 2) * config.width * config.mlp_width
  a_token = {'full': attention + mlp, 'attention_only': attention, 'mlp_only': mlp}[config.sublayers]
  return 2 * (length * config.num_layers * a_token + num_logits * config.width * config.vocab_size)


def matmul(dtype: str):
  """A large matrix product, whose rate is the ceiling of this device, as a function to time, and its FLOPs."""
  size = 2048 if jax.default_backend() == 'cpu' else 8192
  a, b = (jax.random.normal(jax.random.key(i), (size, size), dtype) for i in range(2))
  product = jax.jit(jnp.matmul)
  return lambda: product(a, b), 2 * size**3


@functools.lru_cache
def matmul_rate(dtype: str, rounds: int = 5) -> float:
  """Measured FLOPs a second of `matmul` on one device, the median of some rounds; under a second in all."""
  product, num_flops = matmul(dtype)
  jax.block_until_ready(product())
  seconds = []
  for _ in range(rounds):
    start = time.perf_counter()
    jax.block_until_ready(product())
    seconds.append(time.perf_counter() - start)
  return num_flops / float(np.median(seconds))
