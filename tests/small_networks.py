"""Small networks that tests of several modules share, and token ids for them to read."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis import inter_sequence
from bornbiased_jax.models import transformer
from bornbiased_jax.models.initialization import init_params, param_shapes

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


def tokens(n=6, length=150, seed=0):
  return np.asarray(jax.random.randint(jax.random.key(seed), (n, length), 0, 70))


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


def sharpened(config, seed=1):
  """Parameters whose heads attend to some positions much more than to others."""
  params = init_params(config, seed)
  for name in ('query', 'key'):
    params['blocks'][name]['kernel'] *= 3
  return params


def trained(config, seed=1):
  """Parameters as of a trained network, in which no gain is 1 and no bias is 0.

  They are drawn in numpy, where nothing is compiled.
  """
  random = np.random.default_rng([seed, 1])

  def draw(path, leaf):
    drawn = _by_the_law(config, random, path, leaf)
    if path[-1].key in ('scale', 'bias'):
      own = np.random.default_rng(len(str(path)))
      drawn += np.float32(0.2) * own.standard_normal(leaf.shape, np.float32)
    return jnp.asarray(drawn)

  return jax.tree_util.tree_map_with_path(draw, param_shapes(config))


def _by_the_law(config, random, path, leaf):
  """A leaf of a random network."""
  name, module = path[-1].key, path[max(0, len(path) - 2)].key
  if name in ('bias', 'scale'):
    return np.full(leaf.shape, name == 'scale', np.float32)
  std = config.embedding_std if 'embedding' in name else config.std_of(module)
  return np.float32(std) * random.standard_normal(leaf.shape, np.float32)


def random_networks(config, number):
  """Parameters of random networks, drawn in numpy by the law that test_initialization checks.

  Those of schemes whose weights are not independent normal numbers are the library's.
  """
  if config.init_scheme in ('orthogonal', 'centred'):
    return [init_params(config, seed) for seed in range(number)]
  draw = functools.partial(_by_the_law, config, np.random.default_rng(0))
  return [jax.tree_util.tree_map_with_path(draw, param_shapes(config)) for _ in range(number)]


def last_cosines(config, networks, ids_NT):
  """Mean cosine between the last positions of sequences after each layer, [networks, L]."""
  statistic = inter_sequence('residual_last')
  sums = [statistic.measure(read(config, params, ids_NT, *statistic.reads)) for params in networks]
  return np.array([statistic.summarize(each)['cosine'] for each in sums])
