"""Probes: random inputs, where each sequence is a pure function of a seed and its index."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count, unlike
from bornbiased_jax.models.initialization import Seed, as_seed, stream_key

OF_TEXT = 'text', 'shuffled'
OF_IDS = ('tokens', 'pairs', *OF_TEXT)
KINDS = (*OF_IDS, 'gaussian', 'sphere')
# A text is a constant of the programs that read it.
LONGEST_TEXT = 2**24


class Text(Protocol):
  """A tokenized text, such as `data.Corpus`. Two of one name and digest are equal."""

  @property
  def tokens(self) -> np.ndarray: ...

  @property
  def name(self) -> str: ...

  @property
  def digest(self) -> str: ...

  def check(self, max_vocab: int) -> None:
    """Raises InputError if an id is not below `max_vocab`."""


@dataclasses.dataclass(frozen=True)
class Probe:
  """Random sequences that are never stored: any slice of them can be made on any host.

  Args:
    kind: 'tokens' for ids that are independent and uniform over the vocabulary, 'pairs' for the
      same where the sequences 2 i and 2 i + 1 end in one id, 'gaussian' for vectors of
      independent N(0, config.embedding_std²) entries, which take the place of the token
      embeddings, or 'sphere' for such vectors of one length; 'text' for windows that begin
      anywhere in a text, or 'shuffled' for ids drawn one by one from a text: as frequent, but in
      no order.
    num_sequences: number of sequences, n.
    length: number of positions per sequence, T.
    seed: whole number in [0, 2^32). A probe shares no randomness with the network of
      the same seed.
    num_ids: uniform ids are drawn below this number, so that networks with different
      vocabularies can read the same probe. None means the network's vocabulary.
    of_each: every network of an ensemble reads sequences of its own, which its seed determines
      too. The spread over networks then has the error that the choice of sequences makes.
    text: what 'text' and 'shuffled' read. `data.from_ids` makes one of any ids; shuffled, ids have
      any distribution that one wants.
    start_id: an id that takes the place of the first of every sequence of ids.

  Raises:
    InputError: an unknown kind, less than one sequence, position or id, a seed outside its range,
      or a text that is missing, too short or too long (16 million tokens).

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
  text: Text | None = None
  start_id: int | None = None

  def __post_init__(self):
    if self.kind not in KINDS:
      raise InputError(f'probe kind {self.kind!r} is not one of {", ".join(KINDS)}')
    check_count('num_sequences', self.num_sequences)
    check_count('length', self.length)
    if self.num_ids is not None:
      check_count('num_ids', self.num_ids)
    as_seed(self.seed)
    if (self.kind in OF_TEXT) != (self.text is not None):
      raise InputError(f'a probe of kind {self.kind!r} reads '
                       f'{"a text=, as data.load makes" if self.kind in OF_TEXT else "no text"}')
    if self.text is not None and not hasattr(self.text, 'tokens'):
      raise unlike(self.text, 'a text that data.load returned')
    if self.text is not None and not self.length < len(self.text.tokens) <= LONGEST_TEXT:
      raise InputError(f'{self.text.name} has {len(self.text.tokens)} tokens; a probe of length '
                       f'{self.length} takes from {self.length + 1} to {LONGEST_TEXT}', 'data')
    if self.start_id is not None and (self.start_id < 0 or self.kind not in OF_IDS):
      raise InputError(f'start_id={self.start_id} does not begin sequences of {self.kind}')

  def inputs(self, config: ModelConfig, index_B: jax.Array, network_seed: Seed = 0) -> jax.Array:
    """The sequences with the indices `index_B`, made for a network.

    Args:
      config: the network's architecture; vocab_size, width and embedding_std are used.
      index_B: integers in [0, n).
      network_seed: the network's seed, which matters if the probe is `of_each`.

    Returns:
      Token ids [B, T] in int32, or vectors [B, T, D] in float32.

    Raises:
      InputError: num_ids, start_id or an id of the text exceeds the network's vocabulary.
    """
    if self.kind in OF_IDS:
      draw = self._draw_ids(config.vocab_size)
    else:
      draw = lambda key: config.embedding_std * self._vectors(key, config.width)
    key_of = lambda purpose, index: jax.random.fold_in(self._root(purpose, network_seed), index)
    index_B = index_B.astype(jnp.uint32)
    inputs = jax.vmap(lambda index: draw(key_of('probe', index)))(index_B)
    if self.kind == 'pairs':
      last_B = jax.vmap(lambda index: draw(key_of('last of pairs', index))[-1])(index_B // 2)
      inputs = inputs.at[:, -1].set(last_B)
    return inputs if self.start_id is None else inputs.at[:, 0].set(self.start_id)

  def _draw_ids(self, vocab_size):
    """The function from a key to the ids of a sequence."""
    for name, largest in ('num_ids', vocab_size), ('start_id', vocab_size - 1):
      if (getattr(self, name) or 0) > largest:
        raise InputError(f"{name}={getattr(self, name)} exceeds {largest}, as the model has "
                         f'vocab_size={vocab_size}')
    if not self.text:
      return lambda key: jax.random.randint(key, (self.length,), 0, self.num_ids or vocab_size)
    self.text.check(vocab_size)
    ids = jnp.asarray(np.asarray(self.text.tokens))
    if self.kind == 'text':
      read = lambda start: jax.lax.dynamic_slice(ids, (start,), (self.length,))
      shape, num_starts = (), len(ids) - self.length + 1
    else:
      read, shape, num_starts = (lambda places: ids[places]), (self.length,), len(ids)
    return lambda key: read(jax.random.randint(key, shape, 0, num_starts)).astype(jnp.int32)

  def _root(self, purpose, network_seed):
    root = stream_key(purpose, self.seed)
    return jax.random.fold_in(root, as_seed(network_seed)) if self.of_each else root

  def _vectors(self, key, width):
    vectors_TD = jax.random.normal(key, (self.length, width))
    if self.kind == 'gaussian':
      return vectors_TD
    return vectors_TD * (width**0.5 / jnp.linalg.norm(vectors_TD, axis=-1, keepdims=True))


def kind_of(probe: str | Probe) -> str:
  """The kind of a probe, or of the probe of this kind that needs no more to be said."""
  if isinstance(probe, str) and probe in OF_TEXT:
    raise InputError(f'probe={probe!r} does not say which text: give a Probe')
  return probe if isinstance(probe, str) else probe.kind
