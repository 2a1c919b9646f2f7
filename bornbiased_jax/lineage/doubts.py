"""What could make witnesses agree without descent, or keep them from seeing it."""

import numpy as np
from scipy import stats

from bornbiased_jax.lineage import features, inventory
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.witnesses import input_is_shared

# An order of channels or units counts as chance's own below this z of its test; above it in
# both networks, it may be what they have in common.
ORDERED_Z = 2.5
# A channel with more than this share of the variance of all answers is an outlier.
OUTLIER_SHARE = 0.2
# The largest share of constant channels with which a comparison of answers is conclusive.
MOST_DEGENERATE = 0.1


def embedding_is_shared(base: Dossier, suspect: Dossier, shared: list[dict]) -> bool:
  """Whether the networks have an embedding or LM head in common, or a part of one."""
  if any(each['tensor'] in inventory.OF_TOKENS for each in shared):
    return True
  both = base.tokens, suspect.tokens
  return None not in both and input_is_shared(*both)


def units_are_sorted(base: Dossier, suspect: Dossier) -> bool:
  """Whether both networks have their MLP units in an order that chance does not give."""
  both = base.sketch, suspect.sketch
  return None not in both and min(map(features.sortedness, both)) > ORDERED_Z


def channels_are_sorted(base: Dossier, suspect: Dossier) -> bool:
  """Whether in both networks a mean or std of the channels follows their number."""
  both = base.tokens, suspect.tokens
  return None not in both and bool(np.any(np.min([_trends(each) for each in both], axis=0)
                                          > ORDERED_Z))


def _trends(answers):
  """|z| of Spearman's rho of the numbers of channels with their mean, std, and input's std."""
  columns = (answers.hidden_ND.mean(axis=0), answers.hidden_ND.std(axis=0),
             answers.input_ND.std(axis=0))
  number_D = np.arange(len(columns[0]))
  rho = [stats.spearmanr(number_D, column_D).statistic if np.ptp(column_D) > 0 else 0.0
         for column_D in columns]
  return np.abs(rho) * (len(number_D) - 1)**0.5


def outliers(dossier: Dossier) -> int:
  """The number of channels with more than OUTLIER_SHARE of the answers' variance."""
  if dossier.tokens is None:
    return 0
  variance_D = dossier.tokens.hidden_ND.var(axis=0)
  return int(np.sum(variance_D > OUTLIER_SHARE * variance_D.sum()))


def positions_are_shared(shared: list[dict]) -> bool:
  """Whether both networks have one table of positions, such as frozen sinusoids."""
  return any(each['tensor'] == 'position_embedding' for each in shared)


def sentences(base: Dossier, suspect: Dossier, shared: list[dict]) -> list[str]:
  """All doubts about a pair, for readers."""
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
  if units_are_sorted(base, suspect):
    found.append('In both, MLP units are more alike their neighbours than chance makes them, as '
                 'if they had been sorted. Then their order is no evidence.')
  for name, each in (('base', base), ('suspect', suspect)):
    if count := outliers(each):
      found.append(f'{count} of the channels of the {name} {"has" if count == 1 else "have"} more '
                   f'than {OUTLIER_SHARE:.0%} of the variance of its answers. The p-values are '
                   'those of permutations, which take such channels into account.')
  return found
