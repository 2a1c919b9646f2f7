"""From contraction to preference: how often a network predicts its preferred token.

The final norm gives all states one length. So a state is c μ + √(1-c²) u: a direction μ that all
sequences share, and a random direction u among the D dimensions that states fill. The component c
has the mean √ρ over sequences, where ρ is the cosine of two of them, and the std τ. So the logit of
token v, in units of its own std over tokens, is

    c m_v + √(1-c²) √D e_v · u,   m_v = e_v · μ ~ N(0, 1),   e_v ~ N(0, 1/D) in each dimension.

This is a random-energy model (Derrida 1981): m_v and e_v are fixed by the seed, c and u are fresh
for each sequence. In few dimensions, tokens whose rows e_v are long win more often. Tied heads add
a competitor, the last token's own embedding, which is in the stream.

The share of a token is an integral over c and over its logit, below which the others stay. It keeps
the lengths of rows, and takes their angles as fresh for each sequence, so that √D e_v · u is
|e_v| √D cos θ, for random θ that are independent over tokens. Shares of drawn states are the same
up to the error of the comparison, 0.4 to 2 %, from 10 dimensions on (test_random_energy).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy

from bornbiased_jax.analysis.probes import OF_IDS, Probe, kind_of
from bornbiased_jax.analysis.theory.finite_width import finite_width
from bornbiased_jax.analysis.theory.infinite_width import infinite_width
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models.initialization import Seed, as_seed

# Tokens are taken together whose means and lengths of rows differ by less, in units of their std.
_CELL = 0.1, 0.25
_NODE_K, _WEIGHT_K = np.polynomial.hermite_e.hermegauss(5)
# Logits above that of the largest mean, in units of the rest.
_LOGIT_Z = np.linspace(-8, 10, 121)
_LEAST = 1e-300


class Preference(NamedTuple):
  """What theory says of N random networks that read n sequences each.

  Attributes:
    top1_frequency_N: share of sequences for which the network predicts its preferred token.
    direction_agrees_N: the direction predicts this token (Finding 2.2).
    again_frequency_N: share of the same token among n other sequences. It lacks the luck of the
      first n, so that its mean is that of n → ∞.
    same_token_N: the preferred token among these other sequences is the same token.
  """

  top1_frequency_N: np.ndarray
  direction_agrees_N: np.ndarray
  again_frequency_N: np.ndarray
  same_token_N: np.ndarray


def preference(similarity: float, vocab_size: int, num_sequences: int, dimensions: int, *,
               direction_std: float = 0.0, similarity_std: float = 0.0,
               direction_cosine: float = 1.0, other_similarity: float | None = None,
               own_logit: float | None = None, num_networks: int = 100,
               seed: Seed = 0) -> Preference:
  """Draws the preferred tokens of networks by the random-energy model.

  Args:
    similarity: cosine of two sequences behind the last layer, ρ.
    vocab_size: number of token ids, V.
    num_sequences: number of sequences that each network reads, n.
    dimensions: those that states fill, D.
    direction_std: std over sequences of a state's component along the direction, τ.
    similarity_std: std of ρ over networks.
    direction_cosine: the n other sequences contract to a direction that has this cosine with
      the first: 1 for sequences of one length, or `InfiniteWidth.direction_cosine` for two lengths.
    other_similarity: the cosine of two of these other sequences; None means `similarity`.
    own_logit: mean logit of the last token's own row, in units of a logit's std, if it competes.
    num_networks: number of networks, N.
    seed: seed of the draws.

  Raises:
    InputError: a count is no positive whole number, a similarity is outside [0, 1], or a std is
      negative.

  Cost: some 20 ms per network of 2,048 ids, 75 ms of 50,257.

  Example:
    >>> found = preference(0.25, vocab_size=2048, num_sequences=500, dimensions=42,
    ...                    num_networks=10)
    >>> bool(0.03 < found.top1_frequency_N.mean() < 0.06)
    True
  """
  for name, value in (('vocab_size', vocab_size), ('num_sequences', num_sequences),
                      ('dimensions', dimensions), ('num_networks', num_networks)):
    check_count(name, value)
  other_similarity = similarity if other_similarity is None else other_similarity
  for name, cosine in (('similarity', similarity), ('direction_cosine', direction_cosine),
                       ('other_similarity', other_similarity)):
    if not 0 <= float(cosine) <= 1:
      raise InputError(f'{name}={cosine} is not between 0 and 1')
  own = -math.inf if own_logit is None else own_logit
  for name, std in (('similarity_std', similarity_std), ('direction_std', direction_std),
                    ('own_logit', own**2)):
    if not 0 <= std <= math.inf:
      raise InputError(f'{name}={std} is no number, or negative')
  generator = np.random.default_rng(int(as_seed(seed)))
  is_same = direction_cosine == 1 and similarity == other_similarity

  def network():
    change = similarity_std * generator.standard_normal()
    mean_V, fresh_V = generator.standard_normal((2, vocab_size))
    other_V = direction_cosine * mean_V + math.sqrt(1 - direction_cosine**2) * fresh_V
    length_V = np.sqrt(generator.chisquare(dimensions, vocab_size) / dimensions)
    both = (similarity, mean_V), (other_similarity, other_V)
    shares = [_shares(min(1, max(0, cosine + change)), direction_std, each_V, length_V,
                      dimensions, own) for cosine, each_V in both[:2 - is_same]]
    count_V, other_count_V = (generator.multinomial(num_sequences, each_V)
                              for each_V in (shares * 2)[:2])
    top1 = count_V.argmax()
    return (count_V[top1] / num_sequences, top1 == mean_V.argmax(),
            other_count_V[top1] / num_sequences, top1 == other_count_V.argmax())

  return Preference(*map(np.array, zip(*(network() for _ in range(num_networks)), strict=True)))


@functools.cache
def _angles(dimensions):
  """For a random angle θ, log P(√D cos θ < t) as a function of t; values of it and their weights.

  √(D-1) cot θ has Student's t-distribution of D - 1 degrees of freedom.
  """
  D = max(2, dimensions)
  below = lambda t: scipy.stats.t.cdf(t * np.sqrt((D - 1) / np.maximum(D - t**2, 1e-9)), D - 1)
  end, angle_J = min(D**0.5, 30), np.linspace(-1, 1, 72)[1:-1] * min(D**0.5, 7)
  table_G = np.log(np.maximum(below(np.linspace(-end, end, 1 + 2**16)), _LEAST))

  def log_below(t):
    place = (t + end) * (2**15 / end) + 0.5
    return table_G[np.clip(place, 0, 2**16).astype(np.int32)]

  density_J = (1 - angle_J**2 / D) ** ((D - 3) / 2)
  return log_below, angle_J, density_J / density_J.sum()


def _shares(rho, direction_std, mean_V, length_V, dimensions, own_logit):
  """How probable it is that each token is predicted, [V]."""
  log_below, angle_J, weight_J = _angles(dimensions)
  steps = _CELL[0] * max(math.sqrt(1 - rho), 1e-5), _CELL[1] * length_V.std()
  rounded = np.round(mean_V / steps[0]) + 1j * np.round(length_V / steps[1])
  _, cell_V, count_C = np.unique(rounded, return_inverse=True, return_counts=True)
  mean_C1, length_C1 = ((np.bincount(cell_V, each_V) / count_C)[:, None]
                        for each_V in (mean_V, length_V))
  share_C = np.zeros(len(count_C))
  # If c is the same for all sequences, one node says all.
  nodes = zip(_NODE_K, _WEIGHT_K, strict=True) if direction_std else [(0.0, _WEIGHT_K.sum())]
  for node, weight in nodes:
    along = np.clip(math.sqrt(rho) + direction_std * node, -1 + 1e-10, 1 - 1e-10)
    rest = math.sqrt(1 - along**2)
    logit_Z = (along * mean_C1).max() + rest * _LOGIT_Z
    # All tokens stay below a logit, and a token has it.
    log_below_Z = count_C @ log_below((logit_Z - along * mean_C1) / (rest * length_C1))
    logit_CJ = along * mean_C1 + rest * length_C1 * angle_J
    log_all_CJ = -np.exp(np.interp(logit_CJ, logit_Z, np.log(np.maximum(-log_below_Z, _LEAST))))
    wins_CJ = np.exp(log_all_CJ - log_below(angle_J)) * scipy.special.ndtr(logit_CJ - own_logit)
    share_C += weight * (wins_CJ @ weight_J)
  share_V = share_C[cell_V] / _WEIGHT_K.sum()
  if own_logit > -np.inf:  # Where the own token wins, it is any token.
    share_V += max(0.0, 1 - share_V.sum()) / len(share_V)
  return share_V / share_V.sum()


def preference_at_initialization(config: ModelConfig, length: int, num_sequences: int,
                                 probe: str | Probe = 'tokens', *,
                                 other_length: int | None = None, num_networks: int = 100,
                                 seed: int = 0) -> Preference:
  """What theory says of the preferred tokens of random networks of this architecture.

  It puts `infinite_width`, `finite_width` and `preference` together. No network is drawn, and no
  number is fitted.

  Args:
    config: the architecture.
    length: number of tokens per sequence, T.
    num_sequences: number of sequences that each network reads, n.
    probe: as `infinite_width` takes it. Of a text, the cosine of its windows counts; that a tied
      head prefers the last token of a window is ignored.
    other_length: length of the n other sequences, at most T; None means T.
    num_networks: number of networks, N.
    seed: seed of the draws.

  Raises:
    InputError: as `finite_width` and `preference`.

  `finite_width` gives the similarity: beyond 1,300 tokens, in the limit of infinite width.

  Cost: as `finite_width` and `preference` together.

  Example:
    >>> from bornbiased_jax import configs
    >>> config = configs.get('tiny_gpt2', num_layers=2)
    >>> found = preference_at_initialization(config, length=16, num_sequences=100, num_networks=4)
    >>> found.top1_frequency_N.shape
    (4,)
  """
  limit = infinite_width(config, length, probe)
  finite = finite_width(config, length, probe)
  similarity, other = float(finite.inter_cosine_L[-1]), None
  if other_length is not None:
    # What the width changes is taken to be the same at both lengths.
    direction_cosine = limit.direction_cosine(other_length)
    at_other = limit.inter_cosine_LTT[-1, other_length - 1, other_length - 1]
    other = float(at_other + finite.inter_cosine_L[-1] - limit.inter_cosine_L[-1])
  in_range = lambda cosine: min(1.0, max(0.0, float(cosine)))  # Which corrections may leave.
  size = config.embedding_factor * config.embedding_std
  own = size * (config.width / limit.variance_LT[-1, -1]) ** 0.5
  return preference(
      in_range(similarity), config.vocab_size, num_sequences,
      max(1, round(float(finite.dimensions))), num_networks=num_networks, seed=seed,
      direction_std=float(finite.direction_std), similarity_std=float(finite.inter_cosine_std),
      direction_cosine=1.0 if other_length is None else in_range(direction_cosine),
      other_similarity=None if other is None else in_range(other),
      own_logit=float(own) if config.tied_head and kind_of(probe) in OF_IDS else None)
