"""Pairs of innocent networks that look related: independent ones that share something else.

Each function makes the pairs of some number of networks, each with a configuration and parameters.
"""

from collections.abc import Callable
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.lineage import alterations
from bornbiased_jax.models import init_params, read

from .small_training import from_seeds, imitate, train

Network = tuple[ModelConfig, dict]
Pairs = list[tuple[Network, Network]]
STEPS = 1500
PUBLIC_SEED = 999
_SMALL = dict(num_layers=2, num_heads=4, vocab_size=128, length=64)
NARROW = configs.get('tiny_llama2', **_SMALL, width=16, mlp_width=48, tied_head=True)
LLAMA = configs.get('tiny_llama2', **_SMALL, width=32, mlp_width=96, tied_head=True)
GPT2 = configs.get('tiny_gpt2', **_SMALL, width=32, mlp_width=128, positions='learned')


def all_pairs(config: ModelConfig, networks: list[dict]) -> Pairs:
  return [((config, a), (config, b)) for a, b in itertools.combinations(networks, 2)]


def same_text(config: ModelConfig, count: int) -> Pairs:
  """Trained on one text in one order: embeddings become alike up to a rotation."""
  return all_pairs(config, train(config, from_seeds(config, range(count)), STEPS))


def mimetic(trained: bool, count: int) -> Pairs:
  """Values times output is near a multiple of the identity, as mimetic initialization has it."""
  def init(params, seed):
    turn = jax.random.orthogonal(jax.random.key(seed), LLAMA.width, (LLAMA.num_layers,))
    blocks = params['blocks'] | {'value': {'kernel': turn}, 'output': {'kernel': turn.mT / 2}}
    return params | {'blocks': blocks}

  networks = [init(params, seed) for seed, params in enumerate(from_seeds(LLAMA, range(count)))]
  return all_pairs(LLAMA, train(LLAMA, networks, STEPS) if trained else networks)


def frozen_embedding(share: float, count: int) -> Pairs:
  """One public embedding, tied: all of it and frozen, or a share of its rows, trained further."""
  known = round(share * LLAMA.vocab_size)
  public = init_params(LLAMA, PUBLIC_SEED)['embedding'] * 5
  mixed = lambda params: params | {'embedding': jnp.concatenate(
      (public[:known], 5 * params['embedding'][known:]))}
  networks = [mixed(params) for params in from_seeds(LLAMA, range(count))]
  frozen = ('embedding',) if share == 1 else ()
  return all_pairs(LLAMA, train(LLAMA, networks, STEPS, frozen=frozen))


def sinusoids(count: int) -> Pairs:
  """Frozen sinusoidal positions of amplitude 1."""
  rate = 1e4 ** (-np.arange(0, GPT2.width, 2) / GPT2.width)
  angle = np.arange(GPT2.length)[:, None] * rate
  table = jnp.float32(np.stack((np.sin(angle), np.cos(angle)), -1).reshape(GPT2.length, -1))
  networks = [params | {'position_embedding': table} for params in from_seeds(GPT2, range(count))]
  return all_pairs(GPT2, train(GPT2, networks, STEPS, frozen=('position_embedding',)))


def _answers(config, params):
  ids = jax.random.randint(jax.random.key(0), (500, 16), 0, config.vocab_size)
  return read(config, params, ids, ('hidden_last', 'mlp_hidden'))


def sorted_channels(count: int) -> Pairs:
  """Channels sorted by their mean activation before release."""
  networks = train(LLAMA, from_seeds(LLAMA, range(count)), STEPS)
  order = lambda params: jnp.argsort(_answers(LLAMA, params)['hidden_last'].mean(axis=0))
  return all_pairs(LLAMA, [alterations.order_channels(LLAMA, params, order(params))[1]
                           for params in networks])


def sorted_units(count: int) -> Pairs:
  """MLP units sorted by their mean activation, and one frozen public embedding."""
  pairs = frozen_embedding(1, count)
  networks = [pairs[0][0], *(suspect for _, suspect in pairs[:count - 1])]

  def sort(config, params):
    mean_LF = jnp.abs(_answers(config, params)['mlp_hidden']).mean(axis=(1, 2))
    return alterations.order_units(config, params, jnp.argsort(mean_LF, axis=-1))[1]

  return all_pairs(LLAMA, [sort(*network) for network in networks])


def students(count: int) -> Pairs:
  """Students that learned the hidden states of one teacher, and inherit no weights."""
  teacher, = train(LLAMA, from_seeds(LLAMA, [PUBLIC_SEED]), STEPS)
  learned = train(LLAMA, from_seeds(LLAMA, range(count)), STEPS, loss=imitate(LLAMA, teacher))
  return all_pairs(LLAMA, [teacher, *learned[1:]])


def one_outlier(count: int) -> Pairs:
  """One channel of each network has a hundred times the weight of the others."""
  networks = train(LLAMA, from_seeds(LLAMA, range(count)), STEPS)
  widen = lambda params: params | {'final_norm': {
      'scale': params['final_norm']['scale'].at[0].multiply(100)}}
  return all_pairs(LLAMA, [widen(params) for params in networks])


def rounded(bits: int | None, count: int) -> Pairs:
  """Rounded to bfloat16, or to a few bits with one scale for all networks."""
  networks = train(LLAMA, from_seeds(LLAMA, range(count)), STEPS)
  if bits is None:
    change = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
  else:
    change = lambda x: jnp.round(x * 2**bits) / 2**bits
  return all_pairs(LLAMA, [jax.tree.map(change, params) for params in networks])


def structured(change: Callable[[jax.Array, jax.Array], jax.Array], count: int) -> Pairs:
  """Weights whose place has a meaning; not trained.

  `change` makes each MLP kernel of that of a network and that of a public one.
  """
  public = init_params(LLAMA, PUBLIC_SEED)['blocks']

  def make(params):
    blocks = dict(params['blocks'])
    for name in ('up', 'gate'):
      blocks[name] = {'kernel': change(blocks[name]['kernel'], public[name]['kernel'])}
    across = change(blocks['down']['kernel'].mT, public['down']['kernel'].mT)
    return params | {'blocks': blocks | {'down': {'kernel': across.mT}}}

  return all_pairs(LLAMA, [make(params) for params in from_seeds(LLAMA, range(count))])


def tile(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  return jnp.tile(kernel_LDF[:, :, :12], (1, 1, 8))


def mask(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  return jnp.where(public_LDF > LLAMA.linear_std, kernel_LDF, 0)


def low_rank(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  """The product of a factor of the network's own and a public one."""
  return kernel_LDF[:, :, :4] @ jnp.sign(public_LDF[:, :4])


def turned_mask(count: int) -> Pairs:
  """One mask and one embedding, and the channels of every suspect rotated."""
  embedding = {'embedding': init_params(LLAMA, PUBLIC_SEED)['embedding']}
  return [((config, a | embedding),
           alterations.rotate_channels(config, b | embedding, jax.random.key(i)))
          for i, ((config, a), (_, b)) in enumerate(structured(mask, count))]


def repeated_values(count: int) -> Pairs:
  """Value channels come twice in each head, as where heads were made larger by copying."""
  half = LLAMA.head_size // 2

  def make(params):
    L, D, G = LLAMA.num_layers, LLAMA.width, LLAMA.num_kv_heads
    blocks = params['blocks']
    value = blocks['value']['kernel'].reshape(L, D, G, -1)[..., :half]
    output = blocks['output']['kernel'].reshape(L, G, -1, D)[:, :, :half]
    return params | {'blocks': blocks | {
        'value': {'kernel': jnp.tile(value, 2).reshape(L, D, -1)},
        'output': {'kernel': jnp.tile(output, (2, 1)).reshape(L, -1, D)}}}

  return all_pairs(LLAMA, [make(params) for params in from_seeds(LLAMA, range(count))])


def add_identity(kernel_LDF: jax.Array, public_LDF: jax.Array) -> jax.Array:
  return kernel_LDF + 2 * LLAMA.linear_std * jnp.tile(jnp.eye(LLAMA.width), (1, 3))[None]


def weak_identity(depths: tuple[int, int], strength: float, reverses: bool, count: int) -> Pairs:
  """Every MLP a little like the identity, or every other one like its reverse; not trained.

  It is too weak to be seen in one layer. `strength` is in units of the weights' std.
  """
  def make(config, seed):
    params = init_params(config, seed)
    eye_DF = jnp.tile(jnp.eye(config.width), (1, config.mlp_width // config.width))
    eye_LDF = jnp.stack([eye_DF[:, ::-1] if reverses and layer % 2 else eye_DF
                         for layer in range(config.num_layers)])
    added = {'up': config.linear_std * eye_LDF, 'gate': config.linear_std * eye_LDF,
             'down': config.residual_std * eye_LDF.mT}
    return config, params | {'blocks': params['blocks'] | {
        name: {'kernel': params['blocks'][name]['kernel'] + strength * each}
        for name, each in added.items()}}

  first, second = (dataclasses.replace(LLAMA, num_layers=depth) for depth in depths)
  return [(make(first, i), make(second, j)) for i, j in itertools.combinations(range(count), 2)]


def large_embedding(count: int) -> Pairs:
  """Embeddings of std 1, as where a multiplier of muP was folded into them; not trained."""
  config = dataclasses.replace(LLAMA, embedding_std=1.0)
  return all_pairs(config, from_seeds(config, range(count)))


_partial = functools.partial
INNOCENT: dict[str, Callable[[int], Pairs]] = {
    'one text (width 16)': _partial(same_text, NARROW),
    'one text (width 32)': _partial(same_text, LLAMA),
    'one text (GPT-2)': _partial(same_text, GPT2),
    'mimetic init': _partial(mimetic, False),
    'mimetic init (trained)': _partial(mimetic, True),
    'frozen public embedding': _partial(frozen_embedding, 1),
    'public embedding (50 % of rows)': _partial(frozen_embedding, 0.5),
    'public embedding (90 % of rows)': _partial(frozen_embedding, 0.9),
    'frozen sinusoids': sinusoids,
    'sorted channels': sorted_channels,
    'sorted units (public embedding)': sorted_units,
    'students of one teacher': students,
    'one outlier channel': one_outlier,
    'bfloat16': _partial(rounded, None),
    'one quantization scale': _partial(rounded, 5),
    'embedding of std 1': large_embedding,
    'tiled units': _partial(structured, tile),
    'one sparsity mask': _partial(structured, mask),
    'one sparsity mask (turned)': turned_mask,
    'public factor of low rank': _partial(structured, low_rank),
    'repeated value channels': repeated_values,
    'near the identity': _partial(structured, add_identity),
    'weakly near it (4 and 5 layers)': _partial(weak_identity, (4, 5), 1.0, False),
    'near it and its reverse in turn': _partial(weak_identity, (4, 4), 1.5, True),
}
