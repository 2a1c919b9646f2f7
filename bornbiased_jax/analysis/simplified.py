"""Stacks of the paper's simplified layers, without residual stream and positions.

    MLP0(x) = W_2 f(W_1 x)                     a random MLP without biases
    Attn0(x)_i = (x_1 + … + x_i) / i           uniform attention without weights

The layers can be stacked in any order, with LayerNorm in between if wanted. Attention as a
transformer has it, with its weights, but without residual stream and norm, is `bare_attention`.
"""

import dataclasses
import functools

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.analysis.ensemble import Ensemble, transformer
from bornbiased_jax.configs import ACTIVATIONS, BASE_STD, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention
from bornbiased_jax.models.initialization import Seed, stream_key
from bornbiased_jax.models.transformer import Block

LAYERS = ('mlp', 'attention', 'norm')


@dataclasses.dataclass(frozen=True)
class StackConfig:
  """A stack of simplified layers.

  Args:
    layers: in order, each 'mlp' (MLP0), 'attention' (Attn0) or 'norm' (LayerNorm
      without parameters).
    width: number of channels, d.
    mlp_width: number of hidden units of MLP0.
    activation: as ModelConfig has it.
    std: standard deviation of all weights at initialization.
    embedding_std: standard deviation of a Gaussian probe's inputs.

  Raises:
    InputError: an unknown layer or activation.
  """

  layers: tuple[str, ...]
  width: int
  mlp_width: int
  activation: str = 'relu'
  std: float = BASE_STD
  embedding_std: float = BASE_STD

  def __post_init__(self):
    for layer in self.layers:
      if layer not in LAYERS:
        raise InputError(f'layers: {layer!r} is not one of {", ".join(LAYERS)}')
    if self.activation not in ACTIVATIONS:
      raise InputError(f'activation={self.activation!r} is not one of {", ".join(ACTIVATIONS)}')


def mlp0(x: jax.Array, up: jax.Array, down: jax.Array, activation: str) -> jax.Array:
  """W_2 f(W_1 x), one MLP0 layer: x [..., D], W_1 `up` [D, F], W_2 `down` [F, D], f by its name.

  Example:
    >>> from bornbiased_jax import analysis
    >>> analysis.mlp0(jnp.array([-1., 2.]), jnp.eye(2), jnp.eye(2), 'relu').tolist()
    [0.0, 2.0]
  """
  return ACTIVATIONS[activation](x @ up) @ down


def attn0(x_BTD: jax.Array) -> jax.Array:
  """Uniform causal attention: the running mean over positions.

  Example:
    >>> from bornbiased_jax import analysis
    >>> analysis.attn0(jnp.array([[[1.], [3.], [5.]]])).tolist()
    [[[1.0], [2.0], [3.0]]]
  """
  count_T = jnp.arange(1, x_BTD.shape[1] + 1, dtype=x_BTD.dtype)
  return jnp.cumsum(x_BTD, axis=1) / count_T[None, :, None]


def draw_stack(config: StackConfig, seed: Seed) -> list[dict]:
  """The weights of the random stack with this seed, drawn from N(0, config.std²).

  They do not depend on the activation, so that activations can be compared on the same
  weights. One dict per layer: 'up' [D, F] and 'down' [F, D] for an MLP0, otherwise empty.
  """
  key = stream_key('simplified', seed)

  def mlp_weights(i):
    up, down = jax.random.split(jax.random.fold_in(key, i))
    return {'up': config.std * jax.random.normal(up, (config.width, config.mlp_width)),
            'down': config.std * jax.random.normal(down, (config.mlp_width, config.width))}

  return [mlp_weights(i) if layer == 'mlp' else {} for i, layer in enumerate(config.layers)]


def read_stack(config: StackConfig, params: list[dict], x_BTD: jax.Array,
               names: tuple[str, ...]) -> dict:
  """Runs a stack on a batch and returns the intermediates in `names`.

  The names follow those of the transformer:
    - residual [L, B, T, D]: the output of each layer.
    - residual_last [L, B, D]: the same at the last position.
    - preactivation [M, B, T, F]: W_1 x of each of the M MLP0 layers.
  """
  outputs, preactivations = [], []
  for layer, weights in zip(config.layers, params, strict=True):
    if layer == 'mlp':
      preactivations.append(x_BTD @ weights['up'])
      x_BTD = mlp0(x_BTD, weights['up'], weights['down'], config.activation)
    elif layer == 'attention':
      x_BTD = attn0(x_BTD)
    else:
      x_BTD = jax.nn.standardize(x_BTD)
    outputs.append(x_BTD)
  out = {'residual': jnp.stack(outputs),
         'residual_last': jnp.stack([x_BTD[:, -1] for x_BTD in outputs])}
  if 'preactivation' in names:  # A stack without MLP0 has none to put together.
    out['preactivation'] = jnp.stack(preactivations)
  return {name: out[name] for name in names}


class _BareAttention(Block):
  """A block with only its attention sublayer."""

  @nn.compact
  def __call__(self, x_BTD):
    return self._attention(x_BTD, x_BTD.shape[1], ())[0]


def bare_attention(config: ModelConfig) -> Ensemble:
  """The attention sublayers of random transformers, one after the other (Fig 8).

  They have queries, keys, values, heads and positions, but no residual stream and no norm.
  They read Gaussian probes, and give `residual`, the output of each layer [L, B, T, D].

  Raises:
    InputError: layers have windows.

  Example:
    >>> from bornbiased_jax import analysis, configs
    >>> network = analysis.bare_attention(configs.get('tiny_gpt2', sublayers='attention_only'))
    >>> params, inputs = jax.jit(network.draw)(42), jnp.ones((1, 3, 128))
    >>> jax.jit(network.read, static_argnums=2)(params, inputs, ('residual',))['residual'].shape
    (4, 1, 3, 128)
  """
  if config.windows:
    raise InputError(f'bare attention has no windows={config.windows}')
  block = _BareAttention(config, attention.plain, parent=None)

  def read(params, x_BTD, names):
    def layer(x_BTD, weights):
      x_BTD = block.apply({'params': weights}, x_BTD)
      return x_BTD, x_BTD

    outputs = {'residual': lax.scan(layer, x_BTD.astype(config.dtype), params['blocks'])[1]}
    return {name: outputs[name] for name in names}

  return transformer(config)._replace(read=read)


@functools.cache
def stack(config: StackConfig) -> Ensemble:
  """Random stacks as a family of networks for `ensemble.measure`, to read Gaussian probes."""
  return Ensemble(config, functools.partial(draw_stack, config),
                  functools.partial(read_stack, config))
