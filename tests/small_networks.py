"""Small networks that tests of several modules share, and token ids for them to read."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.models import transformer
from bornbiased_jax.models.initialization import init_params, param_shapes
from bornbiased_jax.storage import checkpoint

SMALL = dict(num_layers=3, width=32, mlp_width=48, num_heads=4, vocab_size=70)
LLAMA = configs.get('tiny_llama2', **SMALL, length=300)
GROUPED = configs.get('tiny_llama2', **SMALL, length=300, num_kv_heads=2)
GPT2 = configs.get('tiny_gpt2', **SMALL, length=300)
# With norms behind the sublayers, and queries and keys that are normalized.
OLMO3 = configs.get('tiny_llama2', **SMALL, length=300, num_kv_heads=2, norm_place='after',
                    qk_norm=True, joint_qk_norm=True, windows=(9, 9, None))
GEMMA2 = configs.get('tiny_llama2', **SMALL, length=300, num_kv_heads=2, norm_place='both',
                     tied_head=True, scaled_embedding=True, windows=(9, None, 9), score_divisor=5.0,
                     score_cap=0.5, logit_cap=0.3)
# These have enough layers and units for tests of their order.
DEEP = configs.get('tiny_llama2', **SMALL | dict(num_layers=4, mlp_width=64))
DEEP_GPT2 = configs.get('tiny_gpt2', **SMALL | dict(num_layers=4, mlp_width=64))


def save_run(directory, step, config, params, **metadata):
  """A run with this checkpoint alone, and no optimizer."""
  writer = checkpoint.Writer(directory)
  writer.save(step, params, {'count': np.zeros(3)},
              checkpoint.as_metadata(config=config, **metadata))
  writer.close()


def tokens(n=6, length=150, seed=0):
  return np.random.default_rng(seed).integers(70, size=(n, length), dtype=np.int32)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _read(config, params, ids, names):
  return transformer.read(config, params, ids, names)


def read(config, params, ids, *names):
  return _read(config, params, ids, names)


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, ids):
  with jax.default_matmul_precision('highest'):
    return transformer.Transformer(config).apply({'params': params}, ids)


def logits(config, params, ids=None):
  """Of token ids, or of four sequences of 20."""
  return np.asarray(_logits(config, params, tokens(4, 20) if ids is None else ids))


def sharpened(config):
  """Parameters whose heads attend to some positions much more than to others."""
  params, = random_networks(config, 1)
  for name in ('query', 'key'):
    params['blocks'][name]['kernel'] *= 3
  return params


def trained(config, seed=1):
  """Parameters as of a trained network, in which no gain is 1 and no bias is 0.

  They are drawn in numpy, where nothing is compiled.
  """
  random = np.random.default_rng([seed, 1])
  normal = functools.partial(random.standard_normal, dtype=np.float32)

  def draw(path, leaf):
    drawn = _at_random(config, normal, path, leaf)
    if not _is_drawn(path):
      own = np.random.default_rng(len(str(path)))
      drawn += np.float32(0.2) * own.standard_normal(leaf.shape, np.float32)
    return jnp.asarray(drawn)

  return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def _is_drawn(path):
  return path[-1].key not in ('scale', 'bias')


def _at_random(config, normal, path, leaf):
  """A leaf of a random network, of the numbers that `normal` gives for a shape."""
  name, module = path[-1].key, path[max(0, len(path) - 2)].key
  if not _is_drawn(path):
    return np.full(leaf.shape, name == 'scale', np.float32)
  std = config.embedding_std if 'embedding' in name else config.std_of(module)
  return np.float32(std) * normal(leaf.shape)


@functools.lru_cache(maxsize=1)
def _normal_numbers(shapes, number):
  """Those of several networks, in arrays of these shapes. The next test often asks for the same."""
  random = np.random.default_rng(0)
  return [[random.standard_normal(shape, np.float32) for shape in shapes] for _ in range(number)]


def random_networks(config, number):
  """Parameters of random networks, drawn in numpy with the stds that test_initialization checks.

  Those of schemes whose weights are not independent normal numbers are the library's.
  """
  if config.init_scheme in ('orthogonal', 'centred'):
    return [init_params(config, seed) for seed in range(number)]
  leaves = jax.tree_util.tree_leaves_with_path(param_shapes(config))
  drawn = tuple(leaf.shape for path, leaf in leaves if _is_drawn(path))
  return [_random_network(config, numbers) for numbers in _normal_numbers(drawn, number)]


def born(config, seed):
  """The random network of a seed, likewise drawn in numpy: other numbers than the library's."""
  normal = functools.partial(np.random.default_rng(seed).standard_normal, dtype=np.float32)
  draw = functools.partial(_at_random, config, normal)
  return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def _random_network(config, numbers):
  remaining = iter(numbers)
  draw = functools.partial(_at_random, config, lambda shape: next(remaining))
  return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def altered(change, config, params, *given):
  """What a change of `experiments.transforms` makes of a network, compiled as one program."""
  made = []

  def change_params(params, *given):
    config_made, changed = change(config, params, *given)
    made.append(config_made)
    return changed

  changed = jax.jit(change_params)(params, *given)
  return made[0], changed


def last_cosines(config, networks, ids_NT):
  """Mean cosine between the last positions of sequences after each layer, [networks, L]."""
  return np.array([mean_cosines(np.asarray(read(config, params, ids_NT, 'residual_last')[
      'residual_last'], np.float64)) for params in networks])


def mean_cosines(state_ND):
  """The mean cosine of all pairs of n states [..., n, D]."""
  unit_ND = state_ND / np.linalg.norm(state_ND, axis=-1, keepdims=True)
  n = unit_ND.shape[-2]
  return (np.sum(unit_ND.sum(axis=-2)**2, axis=-1) - n) / (n * (n - 1))
