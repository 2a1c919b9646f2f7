"""Scores of all columns with all columns, from the signs of differences between rows.

The score of two columns is the number of concordant pairs of rows less that of
discordant ones. Pairs of rows are counted one tile at a time, on CPU as bits of
words and elsewhere by matrix products.
"""

from functools import partial

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

BLOCK = 128
WORD = 32
SCORES_AT_ONCE = 2**21


def scores(a_ND: jax.Array, b_NE: jax.Array) -> jax.Array:
  """Scores [D, E], int32, of every column of a [n, D] with every column of b [n, E]."""
  return lax.platform_dependent(
      a_ND, b_NE, cpu=partial(_sum_of_tiles, _score_by_bits, WORD),
      default=partial(_sum_of_tiles, _score_by_products, BLOCK))


def _sum_of_tiles(score_of_tile, height, a_ND, b_NE):
  """Scores [D, E] over all pairs of rows i < j, by tiles of `height` i's and BLOCK j's."""
  n = len(a_ND)
  a_ND, b_NE = (jnp.pad(x, ((0, -n % BLOCK), (0, 0))) for x in (a_ND, b_NE))
  i_T, j_T = np.meshgrid(np.arange(0, n, height), np.arange(0, n, BLOCK))
  has_pairs_T = i_T < j_T + BLOCK
  starts = jnp.asarray(i_T[has_pairs_T], jnp.int32), jnp.asarray(j_T[has_pairs_T], jnp.int32)

  def add_tile(score_DE, start):
    rows = [lax.dynamic_slice_in_dim(x, first, size) for x in (a_ND, b_NE)
            for first, size in zip(start, (height, BLOCK), strict=True)]
    i_I, j_J = start[0] + jnp.arange(height), start[1] + jnp.arange(BLOCK)
    is_pair_IJ = (i_I[:, None] < j_J[None]) & (j_J[None] < n)
    return score_DE + score_of_tile(*rows, is_pair_IJ), None

  return lax.scan(add_tile, jnp.zeros((a_ND.shape[1], b_NE.shape[1]), jnp.int32), starts)[0]


def _score_by_products(a_ID, a_JD, b_IE, b_JE, is_pair_IJ):
  """Sums of products of signs. In float32 they are exact for fewer than 2^24 pairs."""

  def signs(x_ID, x_JD):
    select = lambda is_IJD: (is_IJD & is_pair_IJ[..., None]).astype(jnp.bfloat16)
    sign_IJD = select(x_ID[:, None] < x_JD[None]) - select(x_ID[:, None] > x_JD[None])
    return sign_IJD.reshape(is_pair_IJ.size, -1)

  product_DE = jnp.einsum('pd,pe->de', signs(a_ID, a_JD), signs(b_IE, b_JE),
                          preferred_element_type=jnp.float32)
  return product_DE.astype(jnp.int32)


def _score_by_bits(a_ID, a_JD, b_IE, b_JE, is_pair_IJ):
  """Counts of bits, for so many columns of `a` at a time that the scores stay in the cache."""
  words_a, words_b = _words(a_ID, a_JD, is_pair_IJ), _words(b_IE, b_JE, is_pair_IJ)
  D, width = a_ID.shape[1], max(1, SCORES_AT_ONCE // b_IE.shape[1])
  part = lambda first: [words_JD[:, first:first + width] for words_JD in words_a]
  return jnp.concatenate([_score_of_words(part(first), words_b) for first in range(0, D, width)])


def _score_of_words(words_a, words_b):
  """Scores: the pairs that neither column ties, less twice the discordant ones."""
  D, E = words_a[0].shape[1], words_b[0].shape[1]
  # With few scores, several words per step, so that the step's work outweighs its start.
  step = next(step for step in (16, 8, 4, 2, 1) if step * D * E <= SCORES_AT_ONCE or step == 1)

  def add_words(score_SDE, words):
    less_SD, differs_SD, less_SE, differs_SE = words
    untied_SDE = differs_SD[:, :, None] & differs_SE[:, None]
    discordant_SDE = untied_SDE & (less_SD[:, :, None] ^ less_SE[:, None])
    count = lambda words: lax.population_count(words).astype(jnp.int32)
    return score_SDE + count(untied_SDE) - 2 * count(discordant_SDE), None

  steps = [words_JX.reshape(-1, step, words_JX.shape[1]) for words_JX in (*words_a, *words_b)]
  score_SDE, _ = lax.scan(add_words, jnp.zeros((step, D, E), jnp.int32), steps)
  return jnp.sum(score_SDE, axis=0, dtype=jnp.int32)


def _words(x_ID, x_JD, is_pair_IJ):
  """Words [J, D] of WORD pairs i, j, uint32: bits for x_i < x_j, and for x_i != x_j in pairs."""
  pack = lambda bits: sum(bit_JD.astype(jnp.uint32) << i for i, bit_JD in enumerate(bits))
  less_JD = pack(x_D[None] < x_JD for x_D in x_ID)
  differs_JD = pack((x_D[None] != x_JD) & is_pair_J[:, None]
                    for x_D, is_pair_J in zip(x_ID, is_pair_IJ, strict=True))
  return less_JD, differs_JD
