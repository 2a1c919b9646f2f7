"""Bigram-Backcopy (Guo et al., arXiv 2410.13835), the task that grows attention sinks in a minute.

Characters follow each other as pairs do in a text, except that after a trigger the character before
it comes again. Which one that was only attention can bring. After every other character a head that
brings it has nothing to bring, and must rest somewhere: on the start token.

Sequences are drawn on the device from a key, and the smallest loss that any network can reach is
known exactly, so that losses can be told as what is above it.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.data import text
from bornbiased_jax.errors import InputError

START = 0
# As in Guo et al.
TRIGGERS = 'teo'


class Backcopy(NamedTuple):
  """The task. Id 0 is the start token; 1, 2, … are the characters of the text in their order.

  Attributes:
    transition_VV: probability [current, next] of the next id where nothing is copied. The row of
      the start token has the frequencies of characters.
    is_trigger_V: whether the id before is copied after this one.
  """

  transition_VV: np.ndarray
  is_trigger_V: np.ndarray

  @property
  def vocab_size(self) -> int:
    return len(self.is_trigger_V)


def load(spec: str = text.EMBEDDED, triggers: str = TRIGGERS) -> Backcopy:
  """The task with the characters of a text, in a form that `corpus.load` takes as text.

  Raises:
    InputError: the text cannot be read, or as `from_text`.
  """
  fragments = text.fragments(text.sources([spec]))
  return from_text(''.join(fragment.text for fragment in fragments), triggers)


def from_text(characters: str, triggers: str = TRIGGERS) -> Backcopy:
  """The task whose characters follow each other as in a text.

  Args:
    characters: at least two of them; each pair of neighbours counts.
    triggers: those after which the one before is copied.

  Raises:
    InputError: there are too few characters, or a trigger is not among them.

  Example:
    >>> task = from_text('banana', triggers='n')
    >>> task.vocab_size, task.transition_VV[1].tolist(), task.is_trigger_V.tolist()
    (4, [0.0, 0.0, 0.0, 1.0], [False, False, False, True])
  """
  if len(characters) < 2:
    raise InputError(f'a text of {len(characters)} characters has no pairs')
  known, ids = np.unique(np.array(list(characters)), return_inverse=True)
  if missing := sorted(set(triggers) - set(known)):
    raise InputError(f'triggers={triggers!r}: {missing[0]!r} is not in the text')
  count_VV = np.zeros((1 + len(known), 1 + len(known)))
  np.add.at(count_VV, (1 + ids[:-1], 1 + ids[1:]), 1)
  count_VV[START, 1:] = np.bincount(ids)
  # The last character may occur nowhere else, and then nothing follows it.
  count_VV[count_VV.sum(axis=1) == 0] = count_VV[START]
  transition_VV = count_VV / count_VV.sum(axis=1, keepdims=True)
  return Backcopy(transition_VV, np.isin(['', *known], list(triggers)))


def draw(task: Backcopy, key: jax.Array, batch_size: int, length: int,
         start: bool = True) -> jax.Array:
  """Sequences of the task: ids [batch_size, length + 1] int32.

  Args:
    task: from `from_text`.
    key: every sequence is a function of it.
    batch_size: number of sequences, B.
    length: number of predictions in each, T.
    start: whether the first id is the start token. Without it sequences begin where the start
      token would have been followed by them, so that predictions are the same but for the first.
  """
  cumulative_VV = jnp.cumsum(jnp.asarray(task.transition_VV), axis=1)
  is_trigger_V = jnp.asarray(task.is_trigger_V)

  def step(pair, uniform_B):
    before_B, now_B = pair
    # Rounding may leave the last sum below 1, where no id would be left.
    drawn_B = jnp.minimum((cumulative_VV[now_B] <= uniform_B[:, None]).sum(axis=1),
                          task.vocab_size - 1)
    next_B = jnp.where(is_trigger_V[now_B] & (before_B != START), before_B, drawn_B)
    return (now_B, next_B), next_B

  uniform_TB = jax.random.uniform(key, (length + (not start), batch_size))
  first_B = jnp.full(batch_size, START)
  _, drawn_TB = lax.scan(step, (first_B, first_B), uniform_TB)
  if start:
    drawn_TB = jnp.concatenate([first_B[None], drawn_TB])
  return drawn_TB.T.astype(jnp.int32)


def log_likelihood(task: Backcopy, ids_BT: jax.Array) -> jax.Array:
  """Log probability [B, T] of each id but the first, given those before it, under the task's rule.

  The mean of its negative is near `entropy`. Subtracted from a network's losses on the same ids it
  leaves what the network could do better, without most of the noise of sampling.

  Args:
    task: from `from_text`.
    ids_BT: ids [B, T + 1], from `draw`.
  """
  before_BT = jnp.pad(ids_BT[:, :-2], ((0, 0), (1, 0)), constant_values=START)
  now_BT, next_BT = ids_BT[:, :-1], ids_BT[:, 1:]
  copies_BT = jnp.asarray(task.is_trigger_V)[now_BT] & (before_BT != START)
  p_BT = jnp.where(copies_BT, next_BT == before_BT,
                   jnp.asarray(task.transition_VV)[now_BT, next_BT])
  return jnp.log(p_BT)


def entropy(task: Backcopy, length: int, start: bool = True) -> float:
  """The smallest mean loss, in nats per prediction, that is possible over T = `length` predictions.

  It is the entropy of the next id given the two before it, averaged over the exact distribution of
  these pairs at each position. Without a start token a network cannot know whether it sees a
  trigger that copies at its first position, where it never does: nothing is lost by that.

  Cost: O(T V²).
  """
  p_VV = task.transition_VV
  entropy_V = -np.sum(p_VV * np.log(np.where(p_VV > 0, p_VV, 1)), axis=1)
  copies_VV = np.broadcast_to(task.is_trigger_V, p_VV.shape).copy()
  copies_VV[START] = False
  pair_VV = np.zeros_like(p_VV)
  pair_VV[START, START] = 1
  losses = []
  for _ in range(length + (not start)):
    drawn_V = np.where(copies_VV, 0, pair_VV).sum(axis=0)
    losses.append(drawn_V @ entropy_V)
    pair_VV = drawn_V[:, None] * p_VV + np.where(copies_VV, pair_VV, 0).T
  return float(np.mean(losses[-length:]))
