"""One block of the transformer: attention and MLP, each with its norms.

For the last letters of arrays' names see `transformer`.
"""

from collections.abc import Callable
import functools
import math

from flax import linen as nn
import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.models import attention, rotary
from bornbiased_jax.models.interventions import intervene, intervene_weights
from bornbiased_jax.models.layers import dense, mixture, mlp


def norm(config: ModelConfig, name: str | None,
         kind: str | None = None) -> nn.LayerNorm | nn.RMSNorm:
  """The norm of a configuration, or of another kind."""
  make = {'layernorm': nn.LayerNorm, 'rmsnorm': nn.RMSNorm}[kind or config.norm]
  # The fast variance, E[x²] - E[x]², loses digits to cancellation.
  return make(epsilon=config.norm_epsilon, use_fast_variance=False, name=name)


def normalize(of_norm: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
  """x after a norm, which computes in float32."""
  return of_norm(x.astype(jnp.float32)).astype(x.dtype)


class Prefix(nn.Module):
  """What Prefix-Tuning+ (arXiv 2506.13674) adds to each head: elu(q) M, by no softmax weighed."""

  @nn.compact
  def __call__(self, query_BTHK):
    """The addition [B, T, H K] to the value aggregate; M begins at zero."""
    H, K = query_BTHK.shape[2:]
    memory_HKJ = self.param('memory', nn.initializers.zeros, (H, K, K))
    added_BTHJ = jnp.einsum('BTHK,HKJ->BTHJ', nn.elu(query_BTHK),
                            memory_HKJ.astype(query_BTHK.dtype))
    return added_BTHJ.reshape(*query_BTHK.shape[:2], -1)


class Block(nn.Module):
  """One block: attention and MLP, each with its norms and added to the residual stream."""

  config: ModelConfig
  attend: Callable[..., jax.Array]

  @nn.compact
  def __call__(self, x_BTD, reads=(), last_only=False, window=None):
    """The residual stream [B, T, D] after the block, and the intermediates in `reads`.

    With `last_only` everything but keys and values is computed only at the last
    position, and the residual stream is [B, 1, D]. `window` is this layer's.
    """
    config, of_attention, of_mlp = self.config, {}, {}
    # Queries, outputs and MLP belong to positions of x; keys and values to those of memory.
    memory_BSD = x_BTD
    x_BTD = before_BTD = x_BTD[:, -1:] if last_only else x_BTD
    if config.sublayers != 'mlp_only':
      memory_BSD = self._norm_at('before', 'attention_norm', memory_BSD)
      update_BTD, of_attention = self._attention(memory_BSD, x_BTD.shape[1], reads, window)
      x_BTD = x_BTD + self._norm_at('after', 'attention_output_norm', update_BTD)
    if config.sublayers != 'attention_only':
      mlp_input_BTD = before_BTD if config.parallel_residual else x_BTD
      mlp_input_BTD = self._norm_at('before', 'mlp_norm', mlp_input_BTD)
      update_BTD, of_mlp = self._mlp(mlp_input_BTD)
      of_mlp |= {'mlp_input': mlp_input_BTD}
      x_BTD = x_BTD + self._norm_at('after', 'mlp_output_norm', update_BTD)
    found = of_attention | of_mlp | {'residual': x_BTD, 'residual_last': x_BTD[:, -1]}
    return x_BTD, {name: found[name] for name in reads if name in found}

  def _norm_at(self, place, name, x_BTD):
    """Norm of x at this place of a sublayer, or x itself if there is none."""
    has_norm = self.config.norm_place in (place, 'both')
    return normalize(norm(self.config, name), x_BTD) if has_norm else x_BTD

  def _attention(self, memory_BSD, num_queries, reads, window=None):
    """What attention adds at the last `num_queries` positions, and its intermediates."""
    config = self.config
    query_BTHK, key_BSGK, value_BSGK = self._queries_keys_values(memory_BSD, num_queries, window)
    limits = {name: value for name, value in (
        ('window', window), ('cap', config.score_cap), ('slopes', attention.alibi_slopes(config)),
        ('sink', self._sink()))
              if value is not None}
    if set(reads) & set(attention.WATCHED):
      change = functools.partial(intervene_weights, config)
      aggregate_BTF, found = attention.watched(query_BTHK, key_BSGK, value_BSGK, reads, change,
                                               **limits)
    else:
      aggregate_BTF, found = self.attend(query_BTHK, key_BSGK, value_BSGK, **limits), {}
    if config.prefix_plus:
      aggregate_BTF = aggregate_BTF + Prefix(name='prefix')(query_BTHK)
    aggregate_BTF = self._intervene(aggregate_BTF.reshape(query_BTHK.shape), value_BSGK)
    output = dense(config, 'output', config.width, config.output_bias)
    value_BSF = value_BSGK.reshape(*value_BSGK.shape[:2], -1)
    return output(aggregate_BTF), found | {'value': value_BSF, 'value_aggregate': aggregate_BTF}

  def _sink(self):
    """The score [H] of a key without a value, which only 'sink_logit' has."""
    if self.config.intervention != 'sink_logit':
      return None
    return self.param('sink_logit', nn.initializers.zeros, (self.config.num_heads,))

  def _queries_keys_values(self, memory_BSD, num_queries, window):
    config, first = self.config, memory_BSD.shape[1] - num_queries
    query_BTHK = self._heads('query', memory_BSD[:, first:], config.num_heads)
    key_BSGK = self._heads('key', memory_BSD, config.num_kv_heads)
    value_BSGK = self._heads('value', memory_BSD, config.num_kv_heads)
    if config.qk_norm:
      query_BTHK = self._qk_norm('query_norm', query_BTHK)
      key_BSGK = self._qk_norm('key_norm', key_BSGK)
    if config.positions == 'rope':
      query_BTHK = rotary.rotate(config, query_BTHK, first, window)
      key_BSGK = rotary.rotate(config, key_BSGK, window=window)
    if config.score_divisor is not None:
      # Attention divides scores by sqrt(K), which this factor replaces.
      factor = math.sqrt(config.head_size / config.score_divisor)
      query_BTHK = (factor * query_BTHK.astype(jnp.float32)).astype(query_BTHK.dtype)
    return query_BTHK, key_BSGK, value_BSGK

  def _qk_norm(self, name, x_BTHK):
    """Queries or keys [B, T, H, K] after RMSNorm of each head, or of all heads together."""
    shape = x_BTHK.shape
    x = x_BTHK.reshape(*shape[:2], -1) if self.config.joint_qk_norm else x_BTHK
    return normalize(norm(self.config, name, 'rmsnorm'), x).reshape(shape)

  def _intervene(self, aggregate_BTHK, value_BSGK):
    """The value aggregate [B, T, H K] after config.intervention (interventions.py)."""
    first = value_BSGK.shape[1] - aggregate_BTHK.shape[1]
    if self.config.intervention == 'rmsnorm':
      of_values = norm(self.config, 'value_norm', 'rmsnorm')
      aggregate_BTHK = normalize(of_values, aggregate_BTHK)
    aggregate_BTHK = intervene(self.config, aggregate_BTHK, value_BSGK[:, first:], first)
    return aggregate_BTHK.reshape(*aggregate_BTHK.shape[:2], -1)

  def _heads(self, name, x_BTD, num_heads):
    config, num_features = self.config, num_heads * self.config.head_size
    project = dense(config, name, num_features, config.qkv_bias)
    return project(x_BTD).reshape(*x_BTD.shape[:2], num_heads, config.head_size)

  def _mlp(self, x_BTD):
    """What the MLP adds to the residual stream, and its intermediates."""
    if self.config.num_experts > 1:
      return mixture(self.config, x_BTD)
    update_BTD, hidden_BTF = mlp(self.config, x_BTD, self.config.mlp_width)
    return update_BTD, {'mlp_hidden': hidden_BTF}
