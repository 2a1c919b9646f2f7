"""Probes: random inputs as a pure function of a seed and a sequence's index."""

import dataclasses

import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig, check_count
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import as_seed, stream_key

KINDS = ('tokens', 'gaussian')


@dataclasses.dataclass(frozen=True)
class Probe:
  """`num_sequences` random sequences; any slice can be made anywhere, none is stored.

  Args:
    kind: 'tokens', ids i.i.d. uniform over the vocabulary; or 'gaussian',
      vectors i.i.d. N(0, config.embedding_std²) in place of embeddings.
    num_sequences: sequences, n.
    length: positions a sequence, T.
    seed: whole number in [0, 2^32); shares no randomness with network `seed`.
    num_ids: draw ids below it, for networks of different vocabularies; None: the network's.

  Raises:
    InputError: an unknown kind, fewer than one sequence, position or id, or a
      seed outside its range.
  """

  kind: str
  num_sequences: int
  length: int
  seed: int = 0
  num_ids: int | None = None

  def __post_init__(self):
    if self.kind not in KINDS:
      raise InputError(f'probe kind {self.kind!r} is not one of {", ".join(KINDS)}')
    for name in ('num_sequences', 'length', *(['num_ids'] if self.num_ids is not None else [])):
      check_count(name, getattr(self, name))
    as_seed(self.seed)

  def inputs(self, config: ModelConfig, index_B: jax.Array) -> jax.Array:
    """Sequences `index_B`: ids [B, T] int32, or vectors [B, T, D] float32.

    Raises:
      InputError: num_ids exceeds the network's vocabulary.
    """
    if self.kind == 'tokens':
      if (self.num_ids or 0) > config.vocab_size:
        raise InputError(f'num_ids={self.num_ids} exceeds the network\'s vocab_size={config.vocab_size}')
      draw = lambda key: jax.random.randint(key, (self.length,), 0, self.num_ids or config.vocab_size)
    else:
      draw = lambda key: config.embedding_std * jax.random.normal(key, (self.length, config.width))
    root = stream_key('probe', self.seed)
    return jax.vmap(lambda index: draw(jax.random.fold_in(root, index)))(index_B.astype(jnp.uint32))
