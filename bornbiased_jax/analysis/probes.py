"""Probes: random inputs, where each sequence is a pure function of a seed and its index."""

import dataclasses

import jax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models.initialization import Seed, as_seed, stream_key
from bornbiased_jax.names import PROBES as KINDS


@dataclasses.dataclass(frozen=True)
class Probe:
  """Random sequences that are never stored: any slice of them can be made on any host.

  Args:
    kind: 'tokens' for ids that are independent and uniform over the vocabulary, 'pairs' for the
      same where the sequences 2 i and 2 i + 1 end in one id, 'gaussian' for vectors of
      independent N(0, config.embedding_std²) entries, which take the place of the token
      embeddings, or 'sphere' for such vectors of one length.
    num_sequences: number of sequences, n.
    length: number of positions per sequence, T.
    seed: whole number in [0, 2^32). A probe shares no randomness with the network of
      the same seed.
    num_ids: ids are drawn below this number, so that networks with different
      vocabularies can read the same probe. None means the network's vocabulary.
    of_each: every network of an ensemble reads sequences of its own, which its seed determines
      too. The spread over networks then has the error that the choice of sequences makes.

  Raises:
    InputError: an unknown kind, less than one sequence, position or id, or a seed
      outside its range.

  Example:
    >>> from bornbiased_jax import analysis, configs
    >>> probe = analysis.Probe('tokens', num_sequences=1000, length=64)
    >>> probe.inputs(configs.get('tiny_gpt2'), jnp.array([0, 1, 999])).shape
    (3, 64)
  """

  kind: str
  num_sequences: int
  length: int
  seed: int = 0
  num_ids: int | None = None
  of_each: bool = False

  def __post_init__(self):
    if self.kind not in KINDS:
      raise InputError(f'probe kind {self.kind!r} is not one of {", ".join(KINDS)}')
    check_count('num_sequences', self.num_sequences)
    check_count('length', self.length)
    if self.num_ids is not None:
      check_count('num_ids', self.num_ids)
    as_seed(self.seed)

  def inputs(self, config: ModelConfig, index_B: jax.Array, network_seed: Seed = 0) -> jax.Array:
    """The sequences with the indices `index_B`, made for a network.

    Args:
      config: the network's architecture; vocab_size, width and embedding_std are used.
      index_B: integers in [0, n).
      network_seed: the network's seed, which matters if the probe is `of_each`.

    Returns:
      Token ids [B, T] in int32, or vectors [B, T, D] in float32.

    Raises:
      InputError: num_ids exceeds the network's vocabulary.
    """
    if self.kind in ('tokens', 'pairs'):
      num_ids = self.num_ids or config.vocab_size
      if num_ids > config.vocab_size:
        raise InputError(f"num_ids={num_ids} exceeds the network's vocab_size={config.vocab_size}")
      draw = lambda key: jax.random.randint(key, (self.length,), 0, num_ids)
    else:
      draw = lambda key: config.embedding_std * self._vectors(key, config.width)
    key_of = lambda purpose, index: jax.random.fold_in(self._root(purpose, network_seed), index)
    index_B = index_B.astype(jnp.uint32)
    inputs = jax.vmap(lambda index: draw(key_of('probe', index)))(index_B)
    if self.kind != 'pairs':
      return inputs
    last_B = jax.vmap(lambda index: draw(key_of('last of pairs', index))[-1])(index_B // 2)
    return inputs.at[:, -1].set(last_B)

  def _root(self, purpose, network_seed):
    root = stream_key(purpose, self.seed)
    return jax.random.fold_in(root, as_seed(network_seed)) if self.of_each else root

  def _vectors(self, key, width):
    vectors_TD = jax.random.normal(key, (self.length, width))
    if self.kind == 'gaussian':
      return vectors_TD
    return vectors_TD * (width**0.5 / jnp.linalg.norm(vectors_TD, axis=-1, keepdims=True))
