"""The transformer: one Linen module for GPT-2, LLaMA, Mistral, Qwen and the paper's own variants.

Shapes are in the names: B batch, T query positions, S key positions, D width,
V vocabulary, L layers, H query heads, G key/value heads, K head size.
"""

from collections.abc import Callable
import functools

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.configs import ACTIVATIONS, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention
from bornbiased_jax.models.interventions import intervene, intervene_weights

# What `Transformer.read` returns by name, with its shape.
READS = {
    'logits': '[B, T, V] float32',
    'logits_last': '[B, V] float32',
    'hidden': '[B, T, D] output of the final norm',
    'hidden_last': '[B, D]',
    'input_last': '[B, D] what enters the residual stream',
    'residual': '[L, B, T, D] residual stream after each block',
    'residual_last': '[L, B, D]',
    'mlp_hidden': '[L, B, T, F] hidden units of the MLP as its down-projection reads them',
    'value_aggregate': '[L, B, T, H K] sum_j a_ij v_j as W_O reads it, heads concatenated',
    'attention_weights': '[L, B, H, T, T] float32',
    'attention_received': '[L, B, H, T] float32, mean weight on each position over the queries from it on',
}
_OF_ATTENTION = ('value_aggregate', *attention.WATCHED)
_OF_LAST_POSITION = ('logits_last', 'hidden_last', 'input_last', 'residual_last')

# What config.remat keeps of a block for the backward pass, beside its input.
_KEPT = {
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'full': jax.checkpoint_policies.nothing_saveable,
}


def read(config: ModelConfig, params: dict, inputs: jax.Array, names: tuple[str, ...],
         attend: Callable[..., jax.Array] = attention.plain) -> dict[str, jax.Array]:
  """The intermediates in `names` of a network's forward pass, at the cost of what they need.

  Args:
    config: the architecture.
    params: as of `initialization.init_params`.
    inputs: token ids [B, T], or continuous vectors [B, T, D] in place of their embeddings.
    names: keys of READS, which gives the shape of each.
    attend: how attention is computed (attention.py).

  Raises:
    InputError: as `Transformer.read`.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params = models.init_params(config, seed=42)
    >>> models.read(config, params, jnp.array([[5, 7, 11]]), ('logits_last',))['logits_last'].shape
    (1, 2048)
  """
  return Transformer(config, attend).apply({'params': params}, inputs, names, method='read')


def head_of(config: ModelConfig, params: dict) -> jax.Array:
  """The LM head [V, D] among parameters, which may be the embedding."""
  return params['embedding' if config.tied_head else 'head']


def activate(name: str, x: jax.Array) -> jax.Array:
  """The activation `name` (configs.ACTIVATIONS), elementwise."""
  function, arguments = ACTIVATIONS[name]
  return getattr(jax.nn, function)(x, **arguments)


def rotate(x_BTHK: jax.Array, theta: float, first_position: int = 0) -> jax.Array:
  """Rotary position embedding in the half-split convention of LLaMA.

  Args:
    x_BTHK: queries or keys of positions first_position, first_position + 1, …
    theta: wavelengths are 2 pi theta^(2 j / K) positions.
    first_position: position of x_BTHK[:, 0].
  """
  T, half = x_BTHK.shape[1], x_BTHK.shape[-1] // 2
  position_T = first_position + jnp.arange(T, dtype=jnp.float32)
  angle_TK = position_T[:, None] * theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  cos_T1K, sin_T1K = jnp.cos(angle_TK)[:, None], jnp.sin(angle_TK)[:, None]
  a, b = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate((a * cos_T1K - b * sin_T1K, b * cos_T1K + a * sin_T1K), axis=-1)
  return rotated.astype(x_BTHK.dtype)


def _norm(config, name, kind=None):
  make = nn.LayerNorm if (kind or config.norm) == 'layernorm' else nn.RMSNorm
  return make(epsilon=config.norm_epsilon, use_fast_variance=False, dtype=config.dtype, name=name)


def _dense(config, name, features, use_bias, std):
  return nn.Dense(features, use_bias, dtype=config.dtype, kernel_init=nn.initializers.normal(std), name=name)


class Block(nn.Module):
  """Pre-norm attention and MLP, each added to the residual stream; for `attend` see attention.py."""

  config: ModelConfig
  attend: Callable[..., jax.Array]

  @nn.compact
  def __call__(self, x_BTD, reads=(), last_only=False):
    """[B, T, D] → the residual stream after the block, and its intermediates named in `reads`.

    With `last_only` all but keys and values is computed at the last position
    alone, and the result is [B, 1, D].
    """
    config, of_attention, of_mlp = self.config, {}, {}
    memory_BSD = x_BTD
    x_BTD = x_BTD[:, -1:] if last_only else x_BTD
    if config.sublayers != 'mlp_only':
      memory_BSD = _norm(config, 'attention_norm')(memory_BSD)
      update_BTD, of_attention = self._attention(memory_BSD, x_BTD.shape[1], reads)
      x_BTD = x_BTD + update_BTD
    if config.sublayers != 'attention_only':
      update_BTD, of_mlp = self._mlp(_norm(config, 'mlp_norm')(x_BTD))
      x_BTD = x_BTD + update_BTD
    found = of_attention | of_mlp | {'residual': x_BTD, 'residual_last': x_BTD[:, -1]}
    return x_BTD, {name: found[name] for name in reads if name in found}

  def _attention(self, memory_BSD, num_queries, reads):
    """What attention adds to the residual stream at the last `num_queries` positions, and its intermediates."""
    config = self.config
    query_BTHK, key_BSGK, value_BSGK = self._queries_keys_values(memory_BSD, num_queries)
    if set(reads) & set(attention.WATCHED):
      change = functools.partial(intervene_weights, config)
      aggregate_BTF, found = attention.watched(query_BTHK, key_BSGK, value_BSGK, reads, change)
    else:
      aggregate_BTF, found = self.attend(query_BTHK, key_BSGK, value_BSGK), {}
    aggregate_BTF = self._intervene(aggregate_BTF.reshape(query_BTHK.shape), value_BSGK)
    update_BTD = _dense(config, 'output', config.width, config.output_bias, config.residual_std)(aggregate_BTF)
    return update_BTD, found | {'value_aggregate': aggregate_BTF}

  def _queries_keys_values(self, memory_BSD, num_queries):
    config, first = self.config, memory_BSD.shape[1] - num_queries
    query_BTHK = self._heads('query', memory_BSD[:, first:], config.num_heads)
    key_BSGK = self._heads('key', memory_BSD, config.num_kv_heads)
    value_BSGK = self._heads('value', memory_BSD, config.num_kv_heads)
    if config.qk_norm:
      query_BTHK = _norm(config, 'query_norm', 'rmsnorm')(query_BTHK)
      key_BSGK = _norm(config, 'key_norm', 'rmsnorm')(key_BSGK)
    if config.positions == 'rope':
      query_BTHK = rotate(query_BTHK, config.rope_theta, first)
      key_BSGK = rotate(key_BSGK, config.rope_theta)
    return query_BTHK, key_BSGK, value_BSGK

  def _intervene(self, aggregate_BTHK, value_BSGK):
    """The value aggregate that W_O reads, heads concatenated (interventions.py)."""
    first = value_BSGK.shape[1] - aggregate_BTHK.shape[1]
    if self.config.intervention == 'rmsnorm':
      aggregate_BTHK = _norm(self.config, 'value_norm', 'rmsnorm')(aggregate_BTHK)
    aggregate_BTHK = intervene(self.config, aggregate_BTHK, value_BSGK[:, first:], first)
    return aggregate_BTHK.reshape(*aggregate_BTHK.shape[:2], -1)

  def _heads(self, name, x_BTD, heads):
    config = self.config
    x_BTF = _dense(config, name, heads * config.head_size, config.qkv_bias, config.linear_std)(x_BTD)
    return x_BTF.reshape(*x_BTD.shape[:2], heads, config.head_size)

  def _mlp(self, x_BTD):
    config = self.config
    hidden_BTF = _dense(config, 'up', config.mlp_width, config.mlp_bias, config.linear_std)(x_BTD)
    if config.gated_mlp:
      gate_BTF = _dense(config, 'gate', config.mlp_width, config.mlp_bias, config.linear_std)(x_BTD)
      hidden_BTF = activate(config.activation, gate_BTF) * hidden_BTF
    else:
      hidden_BTF = activate(config.activation, hidden_BTF)
    update_BTD = _dense(config, 'down', config.width, config.mlp_bias, config.residual_std)(hidden_BTF)
    return update_BTD, {'mlp_hidden': hidden_BTF}


class Transformer(nn.Module):
  """Decoder-only transformer; `apply` is a pure function of parameters and inputs.

  Parameters of the blocks are stacked on a leading layer axis and scanned
  over, so compile time does not grow with depth.

  Args:
    config: the architecture.
    attend: how attention is computed (attention.py), if its weights are not read.

  Example:
    config = configs.get('tiny_gpt2')
    params = initialization.init_params(config, seed=42)
    logits = Transformer(config).apply({'params': params}, tokens)
  """

  config: ModelConfig
  attend: Callable[..., jax.Array] = attention.plain

  def setup(self):
    config = self.config
    embedding_init = nn.initializers.normal(config.embedding_std)
    self.embedding = self.param('embedding', embedding_init, (config.vocab_size, config.width))
    if config.positions == 'learned':
      self.position_embedding = self.param('position_embedding', embedding_init, (config.length, config.width))
    self.blocks = self.param('blocks', self._init_blocks)
    self.final_norm = _norm(config, None)
    if not config.tied_head:
      self.head = self.param('head', nn.initializers.normal(config.linear_std), (config.vocab_size, config.width))

  def _init_blocks(self, key):
    x_BTD = jnp.zeros((1, 1, self.config.width))
    init = lambda key: Block(self.config, self.attend, parent=None).init(key, x_BTD)['params']
    return jax.vmap(init)(jax.random.split(key, self.config.num_layers))

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Logits [B, T, V] in float32 of token ids [B, T] or continuous inputs [B, T, D].

    Continuous inputs take the place of token embeddings.

    Raises:
      InputError: more positions than config.length, or inputs of another shape.
    """
    return self.read(inputs, ('logits',))['logits']

  def read(self, inputs: jax.Array, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """The intermediates in `names` (see READS), at the cost of what they need.

    If all names are of the last position (`…_last`), the last block and the
    head are computed at that position alone.

    Raises:
      InputError: a name that is unknown or of a sublayer that the model
        lacks, or inputs as in `__call__`.
    """
    for name in names:
      if name not in READS:
        raise InputError(f'cannot read {name!r}; what can be read: {", ".join(READS)}')
      if self.config.sublayers == 'mlp_only' and name in _OF_ATTENTION or (
          self.config.sublayers == 'attention_only' and name == 'mlp_hidden'):
        raise InputError(f'cannot read {name!r} of a model with sublayers={self.config.sublayers!r}')
    last_only = all(name in _OF_LAST_POSITION for name in names)
    input_BTD = self._embed(inputs)
    x_BTD, out = self._run_blocks(input_BTD, names, last_only)
    hidden_BTD = self.final_norm(x_BTD)
    if 'logits' in names:
      out['logits'] = self.unembed(hidden_BTD)
    if 'logits_last' in names:
      out['logits_last'] = self.unembed(hidden_BTD[:, -1])
    out.update(hidden=hidden_BTD, hidden_last=hidden_BTD[:, -1], input_last=input_BTD[:, -1])
    return {name: out[name] for name in names}

  def unembed(self, hidden: jax.Array) -> jax.Array:
    """Logits [..., V] in float32 of final-norm outputs [..., D]."""
    head_VD = self.embedding if self.config.tied_head else self.head
    return jnp.einsum('...D,VD->...V', hidden.astype(self.config.dtype), head_VD.astype(self.config.dtype),
                      preferred_element_type=jnp.float32)

  def _embed(self, inputs):
    config = self.config
    is_tokens = jnp.issubdtype(inputs.dtype, jnp.integer)
    if inputs.ndim != (2 if is_tokens else 3) or not is_tokens and inputs.shape[-1] != config.width:
      raise InputError(f'inputs of {inputs.dtype}{list(inputs.shape)} are neither token ids [batch, length] '
                       f'nor vectors [batch, length, {config.width}]')
    T = inputs.shape[1]
    if T > config.length:
      raise InputError(f'{T} positions exceed the configuration\'s length={config.length}')
    x_BTD = self._embed_tokens(inputs) if is_tokens else inputs
    if config.positions == 'learned':
      x_BTD = x_BTD + self.position_embedding[:T]
    return x_BTD.astype(config.dtype)

  def _embed_tokens(self, tokens_BT):
    # An id outside the vocabulary becomes NaN, not somebody else's embedding, nor counted from the end;
    # int32 first, since the vocabulary's size may not fit the ids' own type.
    tokens_BT = tokens_BT.astype(jnp.int32)
    tokens_BT = jnp.where(tokens_BT < 0, self.config.vocab_size, tokens_BT)
    return jnp.take(self.embedding, tokens_BT, axis=0, mode='fill')

  def _run_blocks(self, x_BTD, reads, last_only):
    block = Block(self.config, self.attend, parent=None)
    run = lambda x_BTD, params: block.apply({'params': params}, x_BTD, reads)
    if self.config.remat != 'none':
      # prevent_cse guards against what cannot happen in a scan, at a cost.
      run = jax.checkpoint(run, prevent_cse=False, policy=_KEPT[self.config.remat])
    if not last_only:
      return lax.scan(run, x_BTD, self.blocks)
    if self.config.sublayers == 'mlp_only':
      x_BTD = x_BTD[:, -1:]
    # By index, because slicing off the last layer would copy all the others.
    layer = lambda i: jax.tree.map(lambda leaf: leaf[i], self.blocks)
    x_BTD, out = lax.scan(lambda x, i: run(x, layer(i)), x_BTD, jnp.arange(self.config.num_layers - 1))
    x_BTD, last = block.apply({'params': layer(-1)}, x_BTD, reads, last_only=True)
    return x_BTD, jax.tree.map(lambda stack, leaf: jnp.concatenate((stack, leaf[None])), out, last)
