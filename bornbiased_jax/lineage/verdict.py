"""The verdict on two networks, from several witnesses, as sentences that can be quoted and as JSON.

If the evidence is not sufficient either way, the verdict is 'inconclusive', and the
reasons say what is missing or what else may have caused what was found.
"""

import math

import numpy as np
import scipy

from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import doubts, inventory, witnesses
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.permutations import NUM_PERMUTATIONS, CalibratedResult
from bornbiased_jax.lineage.witnesses import WITNESSES, Testimony

SCHEMA = 2
VERDICTS = ('related', 'unrelated', 'inconclusive', 'not comparable')

# 'related' needs a p-value of at most ALPHA, corrected for the number of witnesses that can accuse.
ALPHA = 1e-4
# 'unrelated' needs all witnesses, corrected for their number, to stay above this.
UNRELATED_ABOVE = 0.01
# 'unrelated' also needs enough sequences, and a witness that can find a mean likeness as small as
# DETECTABLE, 1.5 times what answers show between the trained networks on which it was checked.
LEAST_SEQUENCES = 1000
DETECTABLE = 0.144
# Aligned answers of a mean correlation below this are no sign of a disguise. A copy in disguise has
# 1, one with noise of half its weights' std has at least 0.15; independent networks that were
# trained on one text have up to 0.16 at width 32, and 0.04 (LLaMA) or 0.11 (GPT-2) at width 128.
LEAST_DISGUISED = 0.1
# No null distribution is known so far in its tail that smaller p-values would mean anything.
LEAST_LOG10_P = -12.0

MEANING = (
    'Related means that one descends from the other, that both share an ancestor, or that both '
    'began with the same numbers, as networks do that were drawn from one seed by the same code. '
    'The test does not say which of them came first.')
TOKENIZERS = (
    'Tokenizers were not compared. If an id stands for another token in each network, the '
    'witnesses that read tokens or align embeddings may miss a descendant. They do not accuse more '
    'strangers. Unit order, value order and vectors (single random vectors, T = 1) do not depend '
    'on ids.')
ACCUSERS = tuple(name for name, kind in WITNESSES.items() if kind.accuses)


def compare(base: Dossier, suspect: Dossier, *, aligned: Testimony | None = None,
            embedding_fit: float | None = None, alpha: float = ALPHA,
            num_permutations: int = NUM_PERMUTATIONS) -> dict:
  """Does one of two networks descend from the other, or do both descend from a third?

  Args:
    base: what is known of one network.
    suspect: what is known of the other, from the same probe.
    aligned: what the witnesses say that need both networks (`witnesses.hear_aligned`).
    embedding_fit: `alignment.basis_fit`, which goes with it.
    alpha: largest p-value for the verdict 'related', at most ALPHA.
    num_permutations: as in `permutations.permutation_test`.

  Returns:
    The report, which is JSON. It has schema; verdict, one of VERDICTS; reasons, a list
    of sentences; p_value, that of descent: the smallest of the witnesses that can accuse
    times their number; witnesses, a row for each (`testimony`); doubts, a list of
    sentences; shared_tensors (`inventory.shared`); identical, whether both are one
    network; detectable, the mean likeness of parts that would be found with 95 %
    probability; embedding_fit; sequences; width; alpha; probe; base and suspect.

  Raises:
    InputError: the networks read different probes, or alpha is more than ALPHA: up to there it is
      known which patterns could accuse strangers (`patterns.pattern`).

  Cost: two matrix products of 2 n D² FLOPs and `num_permutations` permutations per
  witness that finds something; seconds for D = 128.

  Example:
    >>> from bornbiased_jax import analysis, lineage
    >>> probe = analysis.Probe('tokens', num_sequences=100, length=4)
    >>> network = lineage.dossier('tiny_gpt2:42', probe)
    >>> lineage.compare(network, network, num_permutations=99_999)['verdict']
    'related'
  """
  if not 0 < alpha <= ALPHA:
    raise InputError(f'alpha={alpha} is not between 0 and {ALPHA:g}')
  report = {
      'schema': SCHEMA, 'verdict': None, 'reasons': [], 'p_value': None, 'witnesses': [],
      'doubts': [], 'shared_tensors': [], 'identical': False, 'detectable': None,
      'embedding_fit': embedding_fit,
      'sequences': len(base.answers.hidden_ND), 'width': base.width, 'alpha': alpha,
      'probe': base.answers.metadata['probe'], 'base': base.about, 'suspect': suspect.about}
  if base.width != suspect.width:
    return report | not_comparable(base.width, suspect.width)
  heard = witnesses.hear(base, suspect, num_permutations) | (aligned or {})
  if base.tensors is not None and suspect.tensors is not None:
    report['shared_tensors'] = inventory.shared(base.tensors, suspect.tensors)
  meaning = doubts.order_has_meaning(base, suspect)
  pattern = doubts.patterns_of_orders(base, suspect)
  report['doubts'] = doubts.sentences(base, suspect, report['shared_tensors'], pattern | meaning)
  silenced = pattern | {name: why for order, why in meaning.items()
                        for name in heard if order in name}
  agreed = any(10**each.log10_p <= UNRELATED_ABOVE for each in _results(heard, tuple(silenced)))
  heard |= silenced
  report['witnesses'] = [testimony(name, heard[name]) for name in WITNESSES if name in heard]
  log10_p = familywise_log10_p(heard)
  report['p_value'] = None if log10_p is None else 10**max(log10_p, LEAST_LOG10_P)
  report['detectable'] = detectable(heard, alpha)
  if _are_one(base, suspect):
    return report | {'verdict': 'related', 'identical': True, 'reasons': [
        'Their parameters have the same SHA-256 digest: one is a copy of the other.']}
  is_silenced = bool(silenced) and (agreed or report['p_value'] is None)
  verdict, reasons = _decide(report, heard, base, suspect, is_silenced)
  return report | {'verdict': verdict, 'reasons': reasons}


def not_comparable(base_width: int, suspect_width: int) -> dict:
  """The verdict on networks of different widths, which needs no more than their configurations."""
  return {'schema': SCHEMA, 'verdict': 'not comparable', 'reasons': [
      f'The networks have {base_width} and {suspect_width} residual channels. The tests pair '
      'channels one by one and do not leave any out to make the numbers equal.']}


def testimony(name: str, result: CalibratedResult | str) -> dict:
  """What one witness says, as JSON: statistic, z, p_value and its null, or why it says nothing."""
  kind = WITNESSES[name]
  row = {'witness': name, 'accuses': kind.accuses, 'compares': kind.compares,
         'misses': kind.misses}
  if isinstance(result, str):
    return row | {'p_value': None, 'z': None, 'statistic': None, 'obstacle': result}
  return row | {
      'p_value': 10**max(result.log10_p, LEAST_LOG10_P), 'z': result.z,
      'statistic': result.statistic,
      'null_mean': result.statistic - result.z * result.null_std, 'null_std': result.null_std,
      'normal_log10_p': max(result.normal_log10_p, LEAST_LOG10_P),
      'permutation_p_value': result.permutation_p_value, 'obstacle': None}


def familywise_log10_p(heard: Testimony) -> float | None:
  """log10 of the p-value of descent: the smallest of those that can accuse, times their number.

  None if none of them has been heard.
  """
  log10_p = [result.log10_p for result in _results(heard, ACCUSERS)]
  return min(0.0, math.log10(len(log10_p)) + min(log10_p)) if log10_p else None


def detectable(heard: Testimony, alpha: float) -> float | None:
  """The mean likeness that the most powerful witness finds with 95 % probability."""
  found = _results(heard, ('unit order', 'tokens', 'vectors'))
  reach = scipy.stats.norm.isf(alpha) + scipy.stats.norm.isf(0.05)
  return min((each.statistic + (reach - each.z) * each.null_std for each in found), default=None)


def _results(heard: Testimony, names: tuple[str, ...]) -> list[CalibratedResult]:
  found = [heard.get(name) for name in names]
  return [result for result in found if isinstance(result, CalibratedResult)]


def _spoke(heard, name):
  return isinstance(heard.get(name), CalibratedResult)


def _decide(report, heard, base, suspect, is_silenced):
  """The verdict and its reasons; `is_silenced` if an order that might accuse is no evidence."""
  level = UNRELATED_ABOVE / max(1, sum(_spoke(heard, name) for name in heard))
  agree = [name for name in heard if _spoke(heard, name) and 10**heard[name].log10_p <= level
           and not _as_after_similar_text(heard, name)]
  accused = [name for name in ACCUSERS if name in agree]
  if report['p_value'] is not None and report['p_value'] <= report['alpha']:
    return 'related', [_found(heard, accused), _rate(report), MEANING]
  if accused:
    return 'inconclusive', [_found(heard, accused), (
        f'Chance seldom gives as much, but an accusation needs a p-value of {report["alpha"]:g} '
        f'at most over all witnesses that can accuse, and here it is '
        f'{p_value_text(math.log10(report["p_value"]))}.')]
  if agree:
    causes = _other_causes(report, heard, agree, base, suspect, is_silenced)
    return 'inconclusive', [_found(heard, agree), *causes]
  if missing := _missing(report, heard, is_silenced):
    return 'inconclusive', ['No witness finds descent.', missing]
  return 'unrelated', ['No witness finds descent.', *_limits(report, heard)]


def _as_after_similar_text(heard, name):
  return name == 'aligned answers' and heard[name].statistic < LEAST_DISGUISED


def _found(heard, names):
  parts = [f'{name} (z = {heard[name].z:.1f}, p-value {p_value_text(heard[name].log10_p)})'
           for name in names]
  return f'They agree in {", ".join(parts)}.'


def _rate(report):
  return (f'At most one in {1 / report["alpha"]:,.0f} pairs of independent networks is called '
          'related, if chance alone decides which feature is where, as in networks that are drawn '
          'at random and trained. This is not the probability that these two are independent.')


def _other_causes(report, heard, agree, base, suspect, is_silenced):
  """What else than descent makes the answers of networks agree."""
  if min(heard[name].log10_p for name in agree) > math.log10(report['alpha']):
    yield ('Chance seldom gives as much, but sometimes. More sequences, or another probe seed, may '
           'settle the question.')
    return
  if report['p_value'] is None and is_silenced:
    yield ('Only answers count here, because no order of hidden features is evidence. They agree '
           'in descendants, but also in networks with a common embedding or teacher.')
  elif report['p_value'] is None:
    yield ('Only answers are known. They agree in descendants, but also in networks with a common '
           'embedding or teacher. The order of hidden features could tell: compare the networks '
           'themselves.')
  else:
    yield ('But it is not shown that their hidden features correspond to each other in their '
           'order. Descendants keep it, unless it was changed on purpose.')
  if doubts.embedding_is_shared(base, suspect, report['shared_tensors']):
    yield ('The suspect shares its embedding or LM head with the base, which is enough to make '
           'answers agree. Its blocks are not shown to descend.')
  elif agree == ['aligned answers']:
    yield ('They agree only after a change of basis that was found from their embeddings '
           f'(cosine {report["embedding_fit"]:.2f} on tokens not used to find it). So do '
           'descendants whose channels were rotated and whose hidden features were permuted on '
           'purpose, but also independent networks that were trained on similar text.')
  elif 'vectors' not in agree and _spoke(heard, 'vectors') and 'aligned answers' not in agree:
    yield ('They agree where tokens are read, but not where random vectors are. That is the same '
           'representation, as students of one teacher have it, and not shown to be the same '
           'weights.')


def _missing(report, heard, is_silenced):
  """What keeps a verdict from being 'unrelated'."""
  if is_silenced:
    return ('But an order of hidden features is no evidence here, with which a descendant might '
            'have been seen.')
  for name in ('tokens', 'vectors'):
    if not _spoke(heard, name):
      return f'But one of them is missing: {name}, because {heard[name]}.'
    degenerate = heard[name].num_degenerate
    if degenerate > doubts.MOST_DEGENERATE * report['width']:
      return (f'{degenerate} of {report["width"]} channels are constant in at least one of the '
              f'networks. With more than {doubts.MOST_DEGENERATE:.0%} such channels a comparison '
              'is inconclusive.')
  if report['sequences'] < LEAST_SEQUENCES:
    return (f'{report["sequences"]} sequences are too few to call two networks unrelated: use '
            f'{LEAST_SEQUENCES} at least.')
  if not report['detectable'] <= DETECTABLE:  # NaN is no power either.
    return (f'A mean likeness below {report["detectable"]:.3f} may have been missed. To call two '
            f'networks unrelated, a witness must be able to find one of {DETECTABLE:g}: use more '
            'sequences.')
  if isinstance(heard.get('aligned answers'), str):
    return ('A descendant whose channels were rotated or permuted could not be looked for: '
            f'{heard["aligned answers"]}.')
  return None


def _limits(report, heard):
  yield (f'A mean likeness of parts in the same place of {report["detectable"]:.4f} or more, 1 '
         'being that of a copy, would have been found with a probability of 95 %. A smaller one '
         'may have been missed.')
  if _spoke(heard, 'aligned answers') and heard['aligned answers'].log10_p < -2:
    yield ('After a change of basis the answers agree by a mean correlation of '
           f'{heard["aligned answers"].statistic:.2f}, as those of networks do that were trained '
           'on similar text. A copy in disguise has 1. One that was also changed much may have '
           'been missed.')
  if 'aligned answers' not in heard:
    yield ('A descendant whose residual channels were permuted or rotated on purpose was not '
           'looked for: that needs the networks themselves, both in memory.')
  yield ('A descendant whose embeddings were replaced, or most of them made unlike on purpose, and '
         'whose channels were then permuted or rotated would also look unrelated.')
  yield TOKENIZERS


def _are_one(base, suspect):
  """Whether two dossiers are of one network; a stranger's file may claim any digest."""
  digests = [each.about.get('digest') for each in (base, suspect)]
  if digests[0] is None or digests[0] != digests[1] or None in (base.tensors, suspect.tensors):
    return False
  return base.tensors.keys() == suspect.tensors.keys() and all(
      tensor.digest == suspect.tensors[name].digest
      and np.array_equal(tensor.sample, suspect.tensors[name].sample)
      for name, tensor in base.tensors.items())
