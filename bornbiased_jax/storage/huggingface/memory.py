"""Models that memory holds: modules of PyTorch, and arrays by their names; without torch."""

from collections.abc import Mapping
import functools
import itertools
import json
import math
import operator
import os
from pathlib import Path
import re
from typing import Any

from flax.traverse_util import flatten_dict
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import path_of, read_json
from bornbiased_jax.models.initialization import leaf_shapes
from bornbiased_jax.storage.huggingface import io
from bornbiased_jax.storage.huggingface.config import choose_family, parse_config
from bornbiased_jax.storage.huggingface.families import split_columns
from bornbiased_jax.storage.huggingface.leaves import (
  Group,
  check_all,
  filled,
  stored_tensors,
  turned,
  untied,
)
from bornbiased_jax.storage.huggingface.quantized import dequantized
from bornbiased_jax.storage.huggingface.tensors import Tensor

# What stands in messages for the name of a file.
_HERE = Path('the state dict')
_TYPES = dict(float32='F32', float16='F16', bfloat16='BF16', int8='I8', int32='I32',
              float8_e4m3fn='F8_E4M3')
# What PyTorch wraps a module in: torch.compile, parallel data, and checkpoints of activations.
_WRAPPERS = '_orig_mod', 'module', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'
_WRAPPED = re.compile(rf'(?<![^./])({"|".join(_WRAPPERS)})\.')


def from_transformers(model: Any) -> tuple[ModelConfig, dict]:
  """Converts a model of `transformers` in memory, as `load` reads its saved folder.

  Args:
    model: a PyTorch module of one of the families of `load`. It stays as it is.

  Returns:
    The configuration, and the parameters as float32 arrays in the tree of `init_params`.

  Raises:
    InputError: it is no such module, or `load` would refuse it.

  Memory holds the result, and one more leaf at a time.

  Example:
    model = transformers.AutoModelForCausalLM.from_pretrained('gpt2')
    config, params = huggingface.from_transformers(model)
  """
  for wrapper in _WRAPPERS:
    model = getattr(model, wrapper, model)
  if hasattr(model, 'merge_and_unload'):
    raise InputError('an adapter of PEFT is merged first: model.merge_and_unload()')
  described: Any = getattr(model, 'config', None)
  if not (hasattr(described, 'to_json_string') and hasattr(model, 'state_dict')):
    raise InputError(f'{type(model).__name__} is no model of transformers, such as '
                     'AutoModelForCausalLM.from_pretrained gives; of other modules '
                     'from_state_dict(config, model.state_dict(), names) takes the tensors')
  # What `save_pretrained` writes.
  stored = json.loads(described.to_json_string()) | {'architectures': [type(model).__name__]}
  return from_state_dict(stored, model.state_dict())


def from_state_dict(config: ModelConfig | Mapping[str, Any] | str | os.PathLike,
                    tensors: Mapping[str, Any], names: Mapping[str, str] | None = None, *,
                    kernels: str | None = None) -> tuple[ModelConfig, dict]:
  """Converts arrays in memory, of PyTorch, NumPy or JAX, as `load` reads them from files.

  Args:
    config: config.json, as a path of it or its folder, or as a dict; or a configuration.
    tensors: arrays of float32, float16 or bfloat16 by their names in `transformers`, as
      `module.state_dict()` has them; or, with `names`, by any, also in nested dicts, such as
      `variables['params']` of Linen. The 'module.' and '_orig_mod.' of wrappers are taken off.
    names: for each parameter here, where it is there, both joined by '/':
      {'embedding': 'embed/embedding', 'blocks/up/kernel': 'layers/{}/mlp/up/kernel', …}. '{}' is
      the layer, counted from 0, and a second '{}' the expert; without it an array has all on its
      first axis. Kernels may have an axis of heads, as [width, heads, head size]. Parameters of one
      name are fused there along the axis of outputs, in the order of `names`. A 'head' that is not
      the embedding unties the two.
    kernels: with `names`, whether kernels are 'in_out', like in Flax, or 'out_in', like PyTorch's
      Linear. Those that are not square show it, so that it is needed only if all are square.

  Returns:
    The configuration, and the parameters as float32 arrays in the tree of `init_params`.

  Raises:
    InputError: as `load`; or a parameter has no name in `names`, is not among `tensors`, has
      another number of entries, or is left over there; or kernels lie in two ways.

  Example:
    >>> from bornbiased_jax import configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params = models.init_params(config, seed=1)
    >>> same = {name: name for name in flatten_dict(params, sep='/')}
    >>> found = from_state_dict(config, params, same)[1]
    >>> bool((found['embedding'] == params['embedding']).all())
    True
  """
  if not isinstance(tensors, Mapping):
    raise InputError(f'{type(tensors).__name__} is no dict of arrays by name, as '
                     'model.state_dict() gives; from_transformers takes a model itself')
  arrays = [_tensor(_unwrapped('/'.join(map(str, path))), array)
            for path, array in flatten_dict(dict(tensors)).items()]
  if names is not None:
    own = config if isinstance(config, ModelConfig) else _parsed(config)[0]
    found = {array.stored_name: array for array in arrays}
    if len(found) < len(arrays):
      raise InputError(f'{_HERE} has two tensors of a name without {" and ".join(_WRAPPERS[:2])}')
    names = {ours: _unwrapped(name) for ours, name in names.items()}
    return filled(*_by_names(own, found, names, kernels))
  own, family, quantization = _parsed(config)
  known, norm = {array.stored_name for array in arrays}, f'{family.modules["final_norm"]}.weight'
  if known.isdisjoint((norm, whole := family.base + norm)):
    advice = _place_of(whole, known, '; if its names are your own, say with names= which parameter '
                       'is where')
    raise InputError(f'{_HERE} has no {whole}, as {family.architecture} has{advice}')
  return io.Files(_HERE, own, family, lambda: dequantized(arrays, quantization), None).load()


def _unwrapped(name):
  return _WRAPPED.sub('', name)


def _place_of(wanted, names, otherwise):
  """What to do if a state dict lacks a name, which another name may end with."""
  for name in sorted(names):
    if name.endswith(f'/{wanted}'):
      place = show(name.removesuffix(f'/{wanted}')).replace('/', "']['")
      return f'; pass checkpoint[{place}]'
    if name.endswith(f'.{wanted}'):
      return f'; take {show(name.removesuffix(wanted))} off its names'
  return otherwise


def to_transformers(config: ModelConfig, params: dict) -> Any:
  """The model of `transformers` that computes the same; it needs torch.

  Args:
    config: the architecture.
    params: its parameters, as from `init_params`.

  Returns:
    A PyTorch module in float32, like `from_pretrained` loads from a saved folder.

  Raises:
    InputError: as `save`; or torch or transformers is not installed.

  Example:
    model = huggingface.to_transformers(*storage.open('results/my_run').load())
  """
  try:
    import torch
    import transformers
  except ImportError as error:
    raise InputError(f'{error.name} is missing: pip install torch transformers; `save` writes a '
                     'folder without them') from None
  family, stored = io.described(config, params)
  tensors = {name: torch.from_numpy(tensor)
             for name, tensor in stored_tensors(config, family, params).items()}
  return getattr(transformers, family.architecture).from_pretrained(
      None, config=transformers.AutoConfig.for_model(**stored), state_dict=tensors)


def _parsed(config):
  """The configuration, its family, and how weights are quantized, as of `parse_config`."""
  if isinstance(config, ModelConfig):
    return config, choose_family(config)[1], {}
  if hasattr(config, 'to_json_string'):  # A configuration of transformers.
    config = json.loads(config.to_json_string())
  if isinstance(config, Mapping):
    return parse_config(dict(config), Path('config'))
  if not isinstance(config, str | os.PathLike):
    raise InputError(f'{type(config).__name__} is no config.json, its folder, a dict or a '
                     'ModelConfig')
  file = path_of(config)
  file = file / 'config.json' if file.is_dir() else file
  return parse_config(read_json(file), file)


def _by_names(config, tensors, names, kernels):
  """The configuration, the tensors, and what is wanted of them for each leaf; all checked."""
  head = names.get('head')
  if config.tied_head and head in tensors and 'embedding' in names:
    config = untied(config, tensors, names['embedding'], head)
    names = {ours: name for ours, name in names.items() if ours != 'head' or not config.tied_head}
  shapes = leaf_shapes(config)
  found = {'names lack': shapes.keys() - names.keys(),
           'unknown in this architecture:': names.keys() - shapes.keys()}
  if said := [f'{what} {", ".join(sorted(those))}' for what, those in found.items() if those]:
    raise InputError('; '.join(said))
  if kernels not in (None, 'in_out', 'out_in'):
    raise InputError(f"kernels={show(kernels)}: give 'in_out' or 'out_in'")
  wanted = _fused(config, shapes, tensors, names)
  if (kernels or _seen_kernels(wanted, tensors)) == 'out_in':
    wanted = [group._replace(shape=turned(group.shape), transposed=True) if _is_kernel(group)
              else group for group in wanted]
  for group in wanted:
    for name, _ in group.stored():
      if name not in tensors:
        raise InputError(f'{_HERE} has no tensor {name} {list(group.shape)}'
                         f'{_place_of(name, tensors, "")}')
      # Heads within what is fused may lie in another order.
      if len(group.leaves) == 1 and _has_axes(tensors[name].shape, group.shape):
        tensors[name] = tensors[name]._replace(shape=list(group.shape))
  check_all(_HERE, tensors, wanted, head, advice='; if it is the head, name it in names; if a '
            'buffer, such as a mask, leave it out of the dict')
  return config, tensors, wanted


def _fused(config, shapes, tensors, names):
  """What is stored of all leaves, with kernels as [in, out]; leaves of one name are fused."""
  together: dict[tuple[str, str], list[str]] = {}  # Where leaves are, and which are fused there.
  for ours, name in names.items():
    together.setdefault((name, '' if ours.endswith(('/kernel', '/bias')) else ours),
                        []).append(ours)
  wanted = []
  for (name, _), leaves in together.items():
    first, axes = shapes[leaves[0]], name.count('{}')
    if any(shapes[ours][:-1] != first[:-1] for ours in leaves):
      raise InputError(f'{show(name)} is the name of {", ".join(leaves)}, which cannot be fused')
    shape = *first[axes:-1], sum(shapes[ours][-1] for ours in leaves)
    of_each = re.sub(r'(?<=[./_])\d+', '{}', name, count=1)
    is_of_each = of_each != name and name in tensors and config.num_layers > 1 and (
        config.num_layers * math.prod(tensors[name].shape) == math.prod(shape))
    if is_of_each and not axes:
      raise InputError(f'{show(name)} is of one layer; write {show(of_each)}')
    wanted.append(Group(name, tuple(leaves), first[:axes], shape, False, np.float32(0),
                        split_columns))
  return wanted


def _is_kernel(group):
  return group.leaves[0].endswith('/kernel')


def _seen_kernels(wanted, tensors):
  """Whether kernels are 'in_out' or 'out_in', by those that are not square."""
  oblong = [group for group in wanted if _is_kernel(group) and group.shape[-1] != group.shape[-2]]
  if not oblong:
    raise InputError("all kernels are square; say kernels='in_out' if they are [in, out], like in "
                     "Flax, or kernels='out_in', like PyTorch's Linear")
  found = {}
  for group in oblong:
    one = tensors.get(group.template.format(*[0] * len(group.counts)))
    if one is not None and math.prod(one.shape) == math.prod(group.shape):
      found['out_in' if tuple(one.shape) == turned(group.shape) else 'in_out'] = one.stored_name
  if len(found) > 1:
    raise InputError(f"kernel {show(found['in_out'])} is [in, out], and {show(found['out_in'])} is "
                     '[out, in]; all are to lie in one way')
  return next(iter(found), 'in_out')


def _has_axes(shape, wanted):
  """Whether axes are as wanted but for some that are split, as into heads and head size."""
  ends = lambda sizes: {*itertools.accumulate(sizes, operator.mul)}
  return math.prod(shape) == math.prod(wanted) and ends(wanted) <= ends(shape)


def _tensor(name, array):
  kind = str(getattr(array, 'dtype', type(array).__name__)).removeprefix('torch.')
  return Tensor(_HERE, name, list(np.shape(array)), _TYPES.get(kind, kind), None,
                functools.partial(_rows, name, array))


def _rows(name, array, first, last):
  """Some rows of an array, or all, without a copy where NumPy can share it."""
  if (first, last) != (0, None):
    array = array[first:last]
  if not hasattr(array, 'detach'):
    return np.asarray(array)
  if array.is_meta:
    raise InputError(f'{_HERE}: tensor {show(name)} is on the device meta, where it has no values')
  # NumPy has no bfloat16.
  return (array.detach().cpu().float() if array.is_floating_point() else array.cpu()).numpy()
