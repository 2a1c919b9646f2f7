"""Pairs of networks that an adversary made: innocent ones that look related, and disguised ones.

Each construction is a function from the number of networks to pairs of networks, each
with a configuration and parameters.
"""

from collections.abc import Callable
import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.lineage import alterations, damage
from bornbiased_jax.models import init_params, read

from .small_training import from_seeds, imitate, text, train

Network = tuple[ModelConfig, dict]
Pairs = list[tuple[Network, Network]]
STEPS = 1500
PUBLIC_SEED = 999
_SMALL = dict(num_layers=2, num_heads=4, vocab_size=128, length=64)
NARROW = configs.get('tiny_llama2', **_SMALL, width=16, mlp_width=48, tied_head=True)
LLAMA = configs.get('tiny_llama2', **_SMALL, width=32, mlp_width=96, tied_head=True)
GPT2 = configs.get('tiny_gpt2', **_SMALL, width=32, mlp_width=128, positions='learned')


class Construction(NamedTuple):
  """What an adversary did.

  Attributes:
    truth: 'unrelated', 'same seed' or 'descendant'.
    make: from the number of networks to pairs.
  """

  truth: str
  make: Callable[[int], Pairs]


def all_pairs(config: ModelConfig, networks: list[dict]) -> Pairs:
  return [((config, a), (config, b)) for a, b in itertools.combinations(networks, 2)]


# Innocent: independent networks that share something else.


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


def large_embedding(count: int) -> Pairs:
  """Embeddings of std 1, as where a multiplier of muP was folded into them; not trained."""
  config = dataclasses.replace(LLAMA, embedding_std=1.0)
  return all_pairs(config, from_seeds(config, range(count)))


# Of one seed, without descent.


def one_seed(count: int) -> Pairs:
  """A seed set before networks of 2 and 3 layers are drawn: they begin with the same numbers."""
  deeper, pairs = dataclasses.replace(LLAMA, num_layers=3), []
  for seed in range(count):
    own, other = init_params(LLAMA, seed), init_params(deeper, 7000 + seed)
    other = own | {'blocks': jax.tree.map(lambda x, y: x.at[:len(y)].set(y), other['blocks'],
                                          own['blocks'])}
    pairs.append(((LLAMA, *train(LLAMA, [own], STEPS)), (deeper, *train(deeper, [other], STEPS))))
  return pairs


# Disguised: true descendants.


def sparse(count: int) -> Pairs:
  """Descendants, with noise of half their std, that keep the zeros of a pruned ancestor."""
  def pair(network, seed):
    config, params = damage.prune(*network, jax.random.key(seed), 0.8)
    noisy = damage.add_noise(config, params, jax.random.key(seed + 1), 0.5)[1]
    kept = jax.tree.map(lambda x, y: jnp.where(x == 0, 0, y), params['blocks'], noisy['blocks'])
    return (config, params), (config, noisy | {'blocks': kept})

  return [pair(network, seed) for seed, network in enumerate(_families(count))]


def _families(count):
  """Trained networks of both families, half of each."""
  for config in (LLAMA, GPT2):
    for params in train(config, from_seeds(config, range(max(1, count // 2))), STEPS):
      yield config, params


def disguised(changes: tuple[Callable, ...], count: int) -> Pairs:
  """Descendants to which changes were made one after another."""
  def disguise(network, seed):
    for i, change in enumerate(changes):
      network = change(*network, jax.random.key(1000 * seed + i))
    return network

  return [(network, disguise(network, seed)) for seed, network in enumerate(_families(count))]


def spoil_rare_tokens(config: ModelConfig, params: dict, key: jax.Array) -> Network:
  """Redraws the embedding of ids that the text never has, thirty times as large."""
  seen = np.unique(text(config.vocab_size, STEPS))
  is_rare_V1 = ~np.isin(np.arange(config.vocab_size), seen)[:, None]
  fresh = 30 * params['embedding'].std() * jax.random.normal(key, params['embedding'].shape)
  head = params['embedding' if config.tied_head else 'head']
  return dataclasses.replace(config, tied_head=False), params | {
      'embedding': jnp.where(is_rare_V1, fresh, params['embedding']), 'head': head}


def redrawn_tokens(count: int) -> Pairs:
  """Tokens renumbered, embedding and LM head drawn anew, then trained on."""
  def change(config, params, seed):
    fresh = init_params(config, 5000 + seed)
    params = params | {name: fresh[name] for name in ('embedding', 'head') if name in params}
    return train(config, [params], STEPS // 3)[0]

  return [((config, params), (config, change(config, params, seed)))
          for seed, (config, params) in enumerate(_families(count))]


def _with_strength(change, strength):
  return functools.partial(_of_strength, change, strength)


def _of_strength(change, strength, config, params, key):
  return change(config, params, key, strength)


_ALL_SEVEN = (alterations.permute_units, alterations.permute_heads, alterations.rotate_channels,
              alterations.flip_channels, alterations.mix_values, alterations.turn_queries,
              alterations.scale_channels)
_partial = functools.partial
CONSTRUCTIONS: dict[str, Construction] = {
    'one text (width 16)': Construction('unrelated', _partial(same_text, NARROW)),
    'one text (width 32)': Construction('unrelated', _partial(same_text, LLAMA)),
    'one text (GPT-2)': Construction('unrelated', _partial(same_text, GPT2)),
    'mimetic init': Construction('unrelated', _partial(mimetic, False)),
    'mimetic init (trained)': Construction('unrelated', _partial(mimetic, True)),
    'frozen public embedding': Construction('unrelated', _partial(frozen_embedding, 1)),
    'public embedding (50 % of rows)': Construction('unrelated', _partial(frozen_embedding, 0.5)),
    'public embedding (90 % of rows)': Construction('unrelated', _partial(frozen_embedding, 0.9)),
    'frozen sinusoids': Construction('unrelated', sinusoids),
    'sorted channels': Construction('unrelated', sorted_channels),
    'sorted units (public embedding)': Construction('unrelated', sorted_units),
    'students of one teacher': Construction('unrelated', students),
    'one outlier channel': Construction('unrelated', one_outlier),
    'bfloat16': Construction('unrelated', _partial(rounded, None)),
    'one quantization scale': Construction('unrelated', _partial(rounded, 5)),
    'embedding of std 1': Construction('unrelated', large_embedding),
    'tiled units': Construction('unrelated', _partial(structured, tile)),
    'one sparsity mask': Construction('unrelated', _partial(structured, mask)),
    'one sparsity mask (turned)': Construction('unrelated', turned_mask),
    'public factor of low rank': Construction('unrelated', _partial(structured, low_rank)),
    'repeated value channels': Construction('unrelated', repeated_values),
    'near the identity': Construction('unrelated', _partial(structured, add_identity)),
    'one seed (2 and 3 layers)': Construction('same seed', one_seed),
    'channels change sign': Construction(
        'descendant', _partial(disguised, (alterations.flip_channels,))),
    'channels permuted': Construction(
        'descendant', _partial(disguised, (alterations.permute_channels,))),
    'units and heads permuted': Construction(
        'descendant', _partial(disguised, (alterations.permute_units, alterations.permute_heads))),
    'all seven changes': Construction('descendant', _partial(disguised, _ALL_SEVEN)),
    'all seven changes (noise 0.5)': Construction(
        'descendant', _partial(disguised, (*_ALL_SEVEN, _with_strength(damage.add_noise, 0.5)))),
    'rare tokens spoiled (and all seven)': Construction(
        'descendant', _partial(disguised, (spoil_rare_tokens, *_ALL_SEVEN))),
    'embedding redrawn (trained on)': Construction('descendant', redrawn_tokens),
    'average (0.3 of the base)': Construction(
        'descendant', _partial(disguised, (_with_strength(damage.average, 0.7),))),
    'half of the units': Construction(
        'descendant', _partial(disguised, (_with_strength(damage.remove_units, 0.5),))),
    'layers repeated': Construction(
        'descendant', _partial(disguised, (_with_strength(damage.repeat_layers, 0.5),))),
    'low rank of the same size': Construction(
        'descendant', _partial(disguised, (_with_strength(damage.add_low_rank, 1.0),))),
    'sparse (noise 0.5)': Construction('descendant', sparse),
    'rotated (average 0.5)': Construction('descendant', _partial(disguised, (
        alterations.rotate_channels, _with_strength(damage.average, 0.5)))),
}
