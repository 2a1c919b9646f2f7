"""What could make witnesses agree without descent, or keep them from seeing it."""

import math

import numpy as np
import scipy

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import features, inventory, patterns
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.witnesses import input_is_shared

# An order of channels or units counts as chance's own below this z of its test; above it in
# both networks, it may be what they have in common.
ORDERED_Z = 2.5
# log10 of the p-value below which features of one number count as alike in different layers.
STRUCTURE_LOG10_P = -3.0
# What an order is that of: features, each with the names of the matrices that hold them.
_FEATURES = {'unit order': features.UNITS, 'value order': features.VALUES}
# A channel with more than this share of the variance of all answers is an outlier.
OUTLIER_SHARE = 0.2
# The largest share of constant channels with which a comparison of answers is conclusive.
MOST_DEGENERATE = 0.1


def embedding_is_shared(base: Dossier, suspect: Dossier, shared: list[dict]) -> bool:
  """Whether the networks have an embedding or LM head in common, or a part of one."""
  if any(each['tensor'] in inventory.OF_TOKENS for each in shared):
    return True
  a, b = base.tokens, suspect.tokens
  return a is not None and b is not None and input_is_shared(a, b)


def order_has_meaning(base: Dossier, suspect: Dossier) -> dict[str, str]:
  """By 'unit order' and 'value order', why chance alone does not decide it, if it does not."""
  a, b = base.sketch, suspect.sketch
  if a is None or b is None:
    return {}
  found = {}
  for name, group in _FEATURES.items():
    log10_p = patterns.structure_log10_p(a, b, group)
    if log10_p == -math.inf:
      found[name] = 'with a single layer, chance cannot be told from structured weights'
    elif log10_p < STRUCTURE_LOG10_P:
      found[name] = 'features of one number are alike in different layers'
  if min(map(patterns.sortedness, (a, b))) > ORDERED_Z:
    found['unit order'] = 'the units of both networks seem to be sorted'
  x, y = base.tensors, suspect.tensors
  if x is not None and y is not None:
    for name, parts in _FEATURES.items():
      if where := inventory.pattern_agrees(x, y, parts):
        found[name] = f'both networks have their {where}'
  return found


def patterns_of_orders(base: Dossier, suspect: Dossier) -> dict[str, str]:
  """By 'unit order' and 'value order', the `patterns.pattern` of two networks, if they have one.

  It is one of their own bases. Aligned witnesses look for theirs (`witnesses.hear_aligned`).
  """
  found: dict[str, str] = {}
  if base.sketch is None or suspect.sketch is None:
    return found
  for name, group in _FEATURES.items():
    try:
      why = patterns.pattern(base.sketch, suspect.sketch, group)
    except InputError:
      continue  # They cannot be compared, which their witness says.
    if why:
      found[name] = why
  return found


def channels_are_sorted(base: Dossier, suspect: Dossier) -> bool:
  """Whether in both networks a mean or std of the channels follows their number."""
  both = base.tokens, suspect.tokens
  return None not in both and bool(np.any(np.min([_trends(each) for each in both], axis=0)
                                          > ORDERED_Z))


def _trends(answers):
  """|z| of Spearman's rho of the numbers of channels with their mean, std, and input's std."""
  columns = (answers.hidden_ND.mean(axis=0), answers.hidden_ND.std(axis=0),
             answers.input_ND.std(axis=0))
  # Answers that are logits are as many as were asked for, not as many as the input's channels.
  rho = [scipy.stats.spearmanr(np.arange(len(each)), each).statistic if np.ptp(each) > 0 else 0.0
         for each in columns]
  return np.abs(rho) * [(len(each) - 1)**0.5 for each in columns]


def outliers(dossier: Dossier) -> int:
  """The number of channels with more than OUTLIER_SHARE of the answers' variance."""
  if dossier.tokens is None:
    return 0
  variance_D = dossier.tokens.hidden_ND.var(axis=0)
  return int(np.sum(variance_D > OUTLIER_SHARE * variance_D.sum()))


def positions_are_shared(shared: list[dict]) -> bool:
  """Whether both networks have one table of positions, such as frozen sinusoids."""
  return any(each['tensor'] == 'position_embedding' for each in shared)


def differences(base: Dossier, suspect: Dossier) -> list[str]:
  """In what two networks of one width differ, and what that does to the tests."""
  found, depths = [], [_depth(each) for each in (base, suspect)]
  sizes = [each.answers.metadata['model'].get('vocab_size') for each in (base, suspect)]
  num_ids = base.answers.metadata['probe'].get('num_ids')
  if None not in (*sizes, num_ids) and sizes[0] != sizes[1]:
    found.append(f'Their vocabularies have {sizes[0]} and {sizes[1]} ids, and both read random ids '
                 f'below {num_ids}.')
  if None not in depths and depths[0] != depths[1]:
    found.append(f'They have {depths[0]} and {depths[1]} layers, so that hidden features of every '
                 'layer are compared with those of every layer of the other. Descent is less clear '
                 'in them than between networks of one depth.')
  return found


def _depth(dossier):
  """The number of layers, None if it is not known."""
  return max(map(len, dossier.sketch.values()), default=None) if dossier.sketch else None


def sentences(base: Dossier, suspect: Dossier, shared: list[dict],
              meaning: dict[str, str]) -> list[str]:
  """All doubts about a pair, for readers.

  Args:
    base: one network.
    suspect: the other.
    shared: their `inventory.shared`.
    meaning: their `order_has_meaning` and `patterns_of_orders`.
  """
  found = []
  if embedding_is_shared(base, suspect, shared):
    found.append('They have embedding or LM head in common, as networks have that were built on '
                 'one public embedding. Then channels mean the same in both, and answers agree.')
  if positions_are_shared(shared):
    found.append('They have their table of positions in common, which tells channels apart in the '
                 'same way. Then answers may agree.')
  if channels_are_sorted(base, suspect):
    found.append('In both, a mean or std of the channels follows their number, as if they had '
                 'been sorted. Then answers may agree.')
  for name, why in meaning.items():
    found.append(f'The {name} is no evidence here, because it is not only chance that decides it: '
                 f'{why}.')
  for name, each in (('base', base), ('suspect', suspect)):
    if count := outliers(each):
      found.append(f'{count} of the channels of the {name} {"has" if count == 1 else "have"} more '
                   f'than {OUTLIER_SHARE:.0%} of the variance of its answers. The p-values are '
                   'those of permutations, which take such channels into account.')
  return found + differences(base, suspect)
