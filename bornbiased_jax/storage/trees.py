"""Parameters that were trained elsewhere in JAX, as a tree of arrays with other names."""

from collections.abc import Mapping
import math
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage.huggingface.families import leaf_shapes


def from_tree(config: ModelConfig, tree: Mapping[str, Any], names: Mapping[str, str]) -> dict:
  """The parameters of a network from those of another program, of Linen or NNX.

  Args:
    config: the architecture that they have.
    tree: nested dicts of arrays: `variables['params']` of Linen, or
      `nnx.to_pure_dict(nnx.state(model, nnx.Param))`.
    names: for each parameter here, where it is there, both joined by '/':
      {'embedding': 'embed/embedding', 'blocks/up/kernel': 'layers/{}/mlp/up/kernel', …}. '{}' is
      the layer, counted from 0; without it an array has all layers on its first axis. An array of
      heads, such as [width, heads, head size], is reshaped.

  Returns:
    Parameters as `init_params` makes them, in float32.

  Raises:
    InputError: a parameter has no name in `names`, is not in the tree, has another number of
      entries, or is left over there.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params = models.init_params(config, seed=1)
    >>> same = {name: name for name in flatten_dict(params, sep='/')}
    >>> bool((from_tree(config, params, same)['embedding'] == params['embedding']).all())
    True
  """
  given = {'/'.join(map(str, path)): leaf for path, leaf in flatten_dict(dict(tree)).items()}
  wanted = leaf_shapes(config)
  if unnamed := sorted(wanted.keys() - names.keys()):
    raise InputError(f'names lack {", ".join(unnamed)}')
  if unknown := sorted(names.keys() - wanted.keys()):
    raise InputError(f'this architecture has no {", ".join(unknown)}')
  found, used = {}, set()
  for ours, shape in wanted.items():
    theirs = [names[ours].format(i) for i in range(config.num_layers)]
    is_by_layer = '{}' in names[ours]
    parts = [_take(given, name, ours) for name in (theirs if is_by_layer else theirs[:1])]
    used |= set(theirs)
    whole = np.stack(parts) if is_by_layer else parts[0]
    if whole.size != math.prod(shape):
      raise InputError(f'{names[ours]} has {whole.size} entries, and {ours} {list(shape)}')
    found[ours] = jnp.asarray(whole.reshape(shape), jnp.float32)
  if left := sorted(given.keys() - used):
    raise InputError(f'no parameter here is named for {", ".join(left)}')
  return unflatten_dict(found, sep='/')


def _take(given, name, ours):
  if name not in given:
    raise InputError(f'the tree has no {name}, which names gives for {ours}; it has '
                     f'{", ".join(sorted(given))}')
  return np.asarray(given[name])
