"""Bigram-Backcopy (Guo et al., arXiv 2410.13835), the task that grows attention sinks in a minute.

Characters follow each other as pairs do in a text, except that after a trigger the character before
it comes again. Only attention can tell which one that was. After every other character a head that
copies has nothing to bring, and must rest somewhere; trained networks rest on the start token.

Sequences are drawn on the device from a key. The smallest loss that any network can reach is known
exactly.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.data import text

START = 0
# The numbers of Guo et al.
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


def load() -> Backcopy:
  """The task of Shakespeare's characters."""
  fragments = text.fragments(text.sources([text.EMBEDDED]))
  return from_text(''.join(fragment.text for fragment in fragments))


def from_text(characters: str, triggers: str = TRIGGERS) -> Backcopy:
  """The task whose characters follow each other like in a text.

  Args:
    characters: at least two of them; each pair of neighbours counts.
    triggers: those after which the one before is copied.

  Example:
    >>> task = from_text('banana', triggers='n')
    >>> task.vocab_size, task.transition_VV[1].tolist(), task.is_trigger_V.tolist()
    (4, [0.0, 0.0, 0.0, 1.0], [False, False, False, True])
  """
  known = {character: 1 + i for i, character in enumerate(sorted(set(characters)))}
  ids = np.array([known[character] for character in characters])
  count_VV = np.zeros((1 + len(known), 1 + len(known)))
  np.add.at(count_VV, (ids[:-1], ids[1:]), 1)
  count_VV[START] = np.bincount(ids, minlength=1 + len(known))
  # The last character may occur nowhere else, and then nothing follows it.
  count_VV[count_VV.sum(axis=1) == 0] = count_VV[START]
  transition_VV = count_VV / count_VV.sum(axis=1, keepdims=True)
  return Backcopy(transition_VV, np.array([False, *(each in triggers for each in known)]))


@functools.partial(jax.jit, static_argnames=('batch_size', 'length', 'start'))
def draw(task: Backcopy, key: jax.Array, batch_size: int, length: int,
         start: bool = True) -> jax.Array:
  """Sequences of T = `length` predictions: ids [batch_size, T + 1] int32, a function of the key.

  Without `start` the start token is cut off, and the sequence goes on for one id more.
  """
  p_VV, is_trigger_V = jnp.asarray(task.transition_VV), jnp.asarray(task.is_trigger_V)
  cumulative_VV = jnp.cumsum(p_VV, axis=1)
  # Rounding may leave the last sum below 1. What lies above it is the last id that is possible.
  last_V = task.vocab_size - 1 - jnp.argmax(p_VV[:, ::-1] > 0, axis=1)

  def step(pair, uniform_B):
    before_B, now_B = pair
    drawn_B = jnp.minimum((cumulative_VV[now_B] <= uniform_B[:, None]).sum(axis=1), last_V[now_B])
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
  """
  now_BT, next_BT = ids_BT[:, :-1], ids_BT[:, 1:]
  p_BT = jnp.where(copies(task, now_BT), next_BT == _before(now_BT),
                   jnp.asarray(task.transition_VV)[now_BT, next_BT])
  return jnp.log(p_BT)


@jax.jit
def copies(task: Backcopy, ids_BT: jax.Array) -> jax.Array:
  """Whether after each id the one before it comes again, [B, T], for sequences of T ids."""
  return jnp.asarray(task.is_trigger_V)[ids_BT] & (_before(ids_BT) != START)


def _before(ids_BT):
  return jnp.pad(ids_BT[:, :-1], ((0, 0), (1, 0)), constant_values=START)


def entropy(task: Backcopy, length: int, start: bool = True) -> float:
  """The smallest mean loss, in nats per prediction, that is possible over T = `length` predictions.

  It is the entropy of the next id given the two before it, averaged over the exact distribution of
  these pairs at each position. A trigger that comes first copies nothing. A network can know that
  also without a start token, because it sees only one position.
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
