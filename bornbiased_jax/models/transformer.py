"""The transformer: one Linen module for GPT-2, LLaMA, Mistral, Qwen, OLMo, Gemma, Phi-3 and others.

The last letters of an array's name are its shape: B sequences of the batch,
T query positions, S key positions, D width, V vocabulary, L layers, H query heads,
G key/value heads, N query heads per key/value head, K head size, F features of a
layer in between, E experts. So `query_BTHK` has shape [B, T, H, K].
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_ids, check_kind
from bornbiased_jax.models import attention
from bornbiased_jax.models.block import Block, norm, normalize
from bornbiased_jax.models.layers import draw

# The intermediates that `read` returns by name, and the shape of each.
READS = {
    'logits': '[B, T, V] float32',
    'logits_last': '[B, V] float32',
    'hidden': '[B, T, D] output of the final norm',
    'hidden_last': '[B, D]',
    'input_last': '[B, D] what enters the first block',
    'residual': '[L, B, T, D] residual stream after each block',
    'residual_last': '[L, B, D]',
    'mlp_input': '[L, B, T, D] what MLP or router read, behind their norm',
    'mlp_hidden': '[L, B, T, F] hidden units of the MLP as its down-projection reads them',
    'router_logits': '[L, B, T, E] float32, by which E experts are chosen',
    'expert_weights': '[L, B, T, E] float32 weight of each expert, 0 for those not chosen',
    'value': '[L, B, T, G K] v_i, heads concatenated',
    'value_aggregate': '[L, B, T, H K] o_i = sum_j a_ij v_j as W_O reads it, heads concatenated',
    'attention_weights': '[L, B, H, T, T] float32',
    'attention_received':
        '[L, B, H, T] float32, mean weight on each position over the queries that see it',
}
# From this width on a CPU compiles the layers one by one.
WIDE = 512
_OF_ATTENTION = ('value', 'value_aggregate', *attention.WATCHED)
_OF_EXPERTS = 'router_logits', 'expert_weights'
_OF_LAST_POSITION = ('logits_last', 'hidden_last', 'input_last', 'residual_last')

# What each choice of config.remat stores of a block for the backward pass, besides its input.
_STORED = {
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'full': jax.checkpoint_policies.nothing_saveable,
}


def read(config: ModelConfig, params: dict, inputs: jax.Array, names: tuple[str, ...],
         attend: Callable[..., jax.Array] = attention.plain) -> dict[str, jax.Array]:
  """Runs a network on a batch and returns the intermediates in `names` as a dict of arrays.

  Args:
    config: the architecture.
    params: its parameters, as `init_params` returns them.
    inputs: token ids [B, T], of JAX, NumPy or PyTorch, or continuous vectors [B, T, D] that take
      the place of the token embeddings.
    names: which intermediates to return: keys of READS, which lists their shapes.
    attend: how attention is computed (attention.py).

  Raises:
    InputError: an unknown name, a name of a sublayer that the model lacks, more
      positions than config.length, inputs of another shape, or ids outside the vocabulary. Inside
      jit these give NaN.

  Cost: one forward pass. Under jit, intermediates that are not asked for cost
  no time and no memory. If all names end in `_last`, the last block and the head are
  computed only at the last position.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params, tokens = models.init_params(config, seed=42), jnp.array([[5, 7, 11]])
    >>> read = jax.jit(models.read, static_argnums=(0, 3))
    >>> read(config, params, tokens, ('logits_last',))['logits_last'].shape
    (1, 2048)
  """
  check_kind(config, ModelConfig, 'a ModelConfig')
  if isinstance(names, str):
    raise InputError(f'names={names!r} is one name; give a tuple, ({names!r},)')
  inputs = as_array(inputs)
  is_known = not isinstance(inputs, jax.core.Tracer) and (
      getattr(inputs, 'is_fully_addressable', True))
  if is_known and inputs.ndim == 2 and jnp.issubdtype(inputs.dtype, jnp.integer):
    check_ids(np.asarray(inputs), config.vocab_size)
  model: Any = Transformer(config, attend)
  return model.apply({'params': params}, inputs, names, method='read')


def as_array(inputs: Any) -> Any:
  """Inputs that may be a list, or a tensor of PyTorch."""
  if getattr(inputs, 'is_meta', False):
    raise InputError('a tensor on the device meta has no values')
  inputs = inputs.cpu() if hasattr(inputs, 'detach') else inputs
  try:
    return inputs if isinstance(inputs, jax.Array) else np.asarray(inputs)
  except ValueError:
    raise InputError('sequences of unequal length; give all the same number of token ids') from None


def head_of(config: ModelConfig, params: dict) -> jax.Array:
  """The LM head [V, D] of a network, which is its embedding if the two are tied."""
  return params['embedding' if config.tied_head else 'head']


def unembed(config: ModelConfig, head_VD: jax.Array, hidden: jax.Array) -> jax.Array:
  """Logits [..., V] in float32 of outputs of the final norm [..., D]; for the head see head_of."""
  logits = jnp.einsum('...D,VD->...V', hidden.astype(config.dtype), head_VD.astype(config.dtype),
                      preferred_element_type=jnp.float32)
  return attention.soft_cap(logits, config.logit_cap)


# Linen asks for the shapes again at each `apply`, and under jit they are traced once.
@functools.partial(jax.jit, static_argnums=0)
def _init_blocks(config, key):
  """One parameter for all blocks. `parent=None` keeps Linen from making Block a submodule."""
  x_BTD = jnp.zeros((1, 1, config.width), config.dtype)
  init = lambda key: Block(config, attention.plain, parent=None).init(key, x_BTD)['params']
  return jax.vmap(init)(jax.random.split(key, config.num_layers))


class Transformer(nn.Module):
  """A decoder-only transformer, whose `apply` is a pure function of parameters and inputs.

  The blocks' parameters are stacked on a leading layer axis, over which the forward
  pass scans, so that compile time does not grow with depth.

  Args:
    config: the architecture.
    attend: how attention is computed (attention.py). Reading attention weights
      takes a path of its own, since fused kernels do not return them.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params, tokens = models.init_params(config, seed=42), jnp.array([[5, 7, 11]])
    >>> jax.jit(models.Transformer(config).apply)({'params': params}, tokens).shape
    (1, 3, 2048)
  """

  config: ModelConfig
  attend: Callable[..., jax.Array] = attention.plain

  def setup(self):
    config = self.config
    vocabulary = (config.vocab_size, config.width)
    self.embedding = self.param('embedding', draw(config, config.std_of('embedding')), vocabulary)
    if config.positions == 'learned':
      self.position_embedding = self.param(
          'position_embedding', draw(config, config.std_of('position_embedding')),
          (config.length, config.width))
    self.blocks = self.param('blocks', functools.partial(_init_blocks, config))
    self.final_norm = norm(config, None)  # Linen names it after the attribute.
    if not config.tied_head:
      self.head = self.param('head', draw(config, config.std_of('head')), vocabulary)

  def __call__(self, inputs: jax.Array) -> jax.Array:
    """Logits [B, T, V] in float32 for token ids [B, T] or continuous inputs [B, T, D]."""
    return self.read(inputs, ('logits',))['logits']

  def read(self, inputs: jax.Array, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """The intermediates in `names`; see the function `read` of this module."""
    self._check_names(names)
    last_only = all(name in _OF_LAST_POSITION for name in names)
    input_BTD = self._embed(inputs)
    x_BTD, out = self._run_blocks(input_BTD, names, last_only)
    hidden_BTD = normalize(self.final_norm, x_BTD)
    head_VD = self.embedding if self.config.tied_head else self.head
    if 'logits' in names:
      out['logits'] = unembed(self.config, head_VD, hidden_BTD)
    if 'logits_last' in names:
      out['logits_last'] = unembed(self.config, head_VD, hidden_BTD[:, -1])
    out.update(hidden=hidden_BTD, hidden_last=hidden_BTD[:, -1], input_last=input_BTD[:, -1])
    return {name: out[name] for name in names}

  def _check_names(self, names):
    sublayers, num_experts = self.config.sublayers, self.config.num_experts
    absent = set(_OF_ATTENTION) if sublayers == 'mlp_only' else set()
    if sublayers == 'attention_only':
      absent |= {'mlp_input', 'mlp_hidden', *_OF_EXPERTS}
    absent |= set(_OF_EXPERTS) if num_experts == 1 else {'mlp_hidden'}
    readable = [name for name in READS if name not in absent]
    for name in names:
      if name not in readable:
        raise InputError(f'cannot read {name!r} of a model with sublayers={sublayers!r} and '
                         f'num_experts={num_experts}; what can be read: {", ".join(readable)}')

  def _embed(self, inputs):
    """What enters the residual stream [B, T, D], from token ids or continuous inputs."""
    config = self.config
    is_tokens = jnp.issubdtype(inputs.dtype, jnp.integer)
    is_vectors = inputs.ndim == 3 and inputs.shape[-1] == config.width
    if not (inputs.ndim == 2 if is_tokens else is_vectors):
      raise InputError(f'inputs of {inputs.dtype}{list(inputs.shape)}: give token ids, '
                       f'whole numbers [batch, length], or vectors [batch, length, {config.width}]')
    T = inputs.shape[1]
    if T > config.length:
      raise InputError(f"{T} positions exceed the configuration's length={config.length}")
    x_BTD = self._embed_tokens(inputs) if is_tokens else inputs
    if config.positions == 'learned':
      x_BTD = x_BTD + self.position_embedding[None, :T]
    return x_BTD.astype(config.dtype)

  def _embed_tokens(self, tokens_BT):
    # An id outside the vocabulary becomes NaN rather than another id's embedding; a negative
    # one would count from the end. The cast to int32 comes first because the vocabulary's
    # size may not fit the ids' own type.
    tokens_BT = tokens_BT.astype(jnp.int32)
    tokens_BT = jnp.where(tokens_BT < 0, self.config.vocab_size, tokens_BT)
    x_BTD = jnp.take(self.embedding, tokens_BT, axis=0, mode='fill')
    if not self.config.scaled_embedding:
      return x_BTD
    # The factor is rounded too, as it was in training.
    dtype = self.config.dtype
    return x_BTD.astype(dtype) * jnp.asarray(self.config.embedding_factor, dtype)

  def _is_unrolled(self):
    # A scan copies the weights and, in a gradient, the activations of each layer. On a CPU this
    # is worth the time to compile all layers, if they are wide.
    # With remat the scan keeps the compiler from undoing the recomputation.
    config = self.config
    return jax.default_backend() == 'cpu' and config.width >= WIDE and config.remat == 'none'

  def _run_blocks(self, x_BTD, reads, last_only):
    """The residual stream after all blocks, and the intermediates in `reads` by layer."""
    if self.is_initializing():  # The parameters are made in `setup`; nobody reads what comes out.
      return x_BTD, {}
    block = Block(self.config, self.attend, parent=None)
    # What the layers differ in, so that one program computes them all.
    layers = self.blocks, attention.windows(self.config)
    run = lambda x_BTD, layer: block.apply({'params': layer[0]}, x_BTD, reads, window=layer[1])
    if self.config.remat != 'none':
      # Inside a scan the compiler cannot undo the recomputation, so the guard
      # against that, prevent_cse, would only cost time.
      run = jax.checkpoint(run, prevent_cse=False, policy=_STORED[self.config.remat])
    if not last_only:
      return lax.scan(run, x_BTD, layers, unroll=self._is_unrolled())
    if self.config.sublayers == 'mlp_only':
      x_BTD = x_BTD[:, -1:]  # Without attention no position reads another.
    # The scan runs over indices, because slicing off the last layer would copy all others.
    layer = lambda i: jax.tree.map(lambda leaf: leaf[i], layers)
    all_but_last = jnp.arange(self.config.num_layers - 1)
    x_BTD, out = lax.scan(lambda x, i: run(x, layer(i)), x_BTD, all_but_last)
    params, window = layer(-1)
    x_BTD, last = block.apply({'params': params}, x_BTD, reads, last_only=True, window=window)
    return x_BTD, jax.tree.map(lambda stack, leaf: jnp.concatenate((stack, leaf[None])), out, last)
