"""The paper's simplified layers, without residual stream, positions or weights of their own for attention.

MLP0(x) = W_2 f(W_1 x) and Attn0(x)_i = (x_1 + … + x_i) / i, in any sequence.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bornbiased_jax.analysis.ensemble import Network
from bornbiased_jax.configs import ACTIVATIONS, BASE_STD
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import stream_key
from bornbiased_jax.models.transformer import activate

LAYERS = ('mlp', 'attention', 'norm')


@dataclasses.dataclass(frozen=True)
class StackConfig:
  """A stack of simplified layers.

  Args:
    layers: 'mlp' (MLP0), 'attention' (Attn0) or 'norm' (LayerNorm), in order.
    width: channels, d.
    mlp_width: hidden units of MLP0.
    activation: as in ModelConfig.
    std: of all weights at init.
    embedding_std: of a Gaussian probe's inputs.
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
  """W_2 f(W_1 x): [..., D] with up, W_1, [D, F] and down, W_2, [F, D]."""
  return activate(activation, x @ up) @ down


def attn0(x_BTD: jax.Array) -> jax.Array:
  """Uniform causal attention: the running mean over positions."""
  return jnp.cumsum(x_BTD, axis=1) / jnp.arange(1, x_BTD.shape[1] + 1)[:, None]


def draw_stack(config: StackConfig, seed) -> list[dict]:
  """Weights N(0, std²) of each layer: {'up', 'down'} of an MLP0, the same for every activation, else {}."""
  key = stream_key('simplified', seed)

  def mlp_weights(i):
    up, down = jax.random.split(jax.random.fold_in(key, i))
    return {'up': config.std * jax.random.normal(up, (config.width, config.mlp_width)),
            'down': config.std * jax.random.normal(down, (config.mlp_width, config.width))}

  return [mlp_weights(i) if layer == 'mlp' else {} for i, layer in enumerate(config.layers)]


def read_stack(config: StackConfig, params: list[dict], x_BTD: jax.Array, names: tuple[str, ...]) -> dict:
  """Intermediates by name, by analogy with `Transformer.read`.

  'residual' [L, B, T, D], the output of each layer; 'residual_last'
  [L, B, D]; 'preactivation' [M, B, T, F], W_1 x of the M MLPs.
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
  out = {'residual': jnp.stack(outputs), 'residual_last': jnp.stack([x_BTD[:, -1] for x_BTD in outputs])}
  if 'preactivation' in names:
    out['preactivation'] = jnp.stack(preactivations)
  return {name: out[name] for name in names}


def stack(config: StackConfig) -> Network:
  """Random stacks as a family of networks for `ensemble.measure`, with Gaussian probes."""
  return Network(config, lambda seed: draw_stack(config, seed),
                 lambda params, inputs, names: read_stack(config, params, inputs, names))
