"""What a comparison says, for the console and for the page."""

import math
import textwrap

from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.sentences import p_text
from bornbiased_jax.lineage.verdict import VERDICTS

from ..shared.tables import table
from ..shared.verdicts import counted
from . import pairs
from .picture import shorten

MOST_SHOWN = 40
MOST_NAMED = 6
_WIDTH = 100
_ORDER = ('related', 'inconclusive', 'unrelated')


def sentences(names: list[str], rows: list[dict], left_out: list[dict],
              suspect: str | None) -> list[str]:
  """What was compared, who is related, who agrees in part, what could not be said or read."""
  label = dict(zip(names, shorten(names), strict=True))
  count = {verdict: sum(row['verdict'] == verdict for row in rows) for verdict in VERDICTS}
  compared = (f'{label[suspect]} was compared with {counted(len(rows), "other network")}, which '
              'were not compared with each other' if suspect else
              f'{counted(len(names), "network")} were compared with each other: '
              f'{counted(len(rows), "pair")}')
  in_words = lambda joins: '; and '.join(
      listed([label[name] for name in group]) for group in pairs.groups(names, rows, joins))
  partly = [row for row in rows if pairs.agree_in_part(row)]
  return [
      f'{compared}, '
      + ', '.join(f'{count[verdict]} {verdict}' for verdict in _ORDER if count[verdict]) + '.',
      _identical(in_words(lambda row: row['identical']), rows)
      + _related(in_words(pairs.are_related)),
      *([_in_part(partly, label)] if partly else []),
      _unsaid(count['inconclusive'] - len(partly), left_out)]


def listed(names: list[str]) -> str:
  """
  >>> listed(['a', 'b', 'c'])
  'a, b and c'
  """
  return f'{", ".join(names[:-1])} and {names[-1]}'


def _identical(groups, rows):
  other = any(row['identical'] and row['caveats'] for row in rows)
  return (f'The same numbers are in {groups}{", not all in one configuration" if other else ""}. '
          if groups else '')


def _related(groups):
  if not groups:
    return 'No pair was found to be related.'
  return (f'Related, each with at least one other of its group: {groups}. Who came first is not '
          'known.')


def _in_part(rows, label):
  shown = [listed([label[row['base']], label[row['suspect']]]) for row in rows[:MOST_NAMED]]
  more = f'; and {len(rows) - MOST_NAMED} more' if len(rows) > MOST_NAMED else ''
  return (f'{counted(len(rows), "pair")} agree{"s" * (len(rows) == 1)} in something, which does '
          f'not show descent and does not clear them: {"; ".join(shown)}{more}. Read why.')


def _unsaid(num_inconclusive, left_out):
  said = []
  if num_inconclusive:
    said.append(f'{counted(num_inconclusive, "pair")} could not be judged, and nothing was found')
  if left_out:
    said.append(f'{counted(len(left_out), "other thing")} could not be read')
  return f'{"; ".join(said)}. A reason is given for each.' if said else (
      'Everything could be read, and of each pair something is said.')


def text(report: dict) -> str:
  """The report for a console: sentences, the strongest pairs, and why some were not judged."""
  label = dict(zip(report['networks'], shorten(report['networks']), strict=True))
  rows = ordered(report['rows'])
  parts = ['\n'.join(textwrap.fill(each, _WIDTH) for each in report['summary']),
           table([display(row, label) for row in rows[:MOST_SHOWN]])]
  if len(rows) > MOST_SHOWN:
    parts.append(f'{len(rows) - MOST_SHOWN} more pairs are in results.json and report.html.')
  why: dict[str, list[str]] = {}  # The pairs of each reason.
  for row in rows[:MOST_SHOWN]:
    if row['verdict'] == 'inconclusive':
      reason = row['correction'] or ' '.join(row['reasons'])
      why.setdefault(reason, []).append(f'{label[row["base"]]}, {label[row["suspect"]]}')
  return '\n\n'.join(parts + ['\n'.join(textwrap.fill(
      f'{"; ".join(of)}: {reason}', _WIDTH, subsequent_indent='  ')
      for reason, of in why.items())] * bool(why))


def ordered(rows: list[dict]) -> list[dict]:
  """Identical, related, then what agrees in part; and within each the largest z first."""
  return sorted(rows, key=lambda row: (
      not row['identical'], _ORDER.index(row['verdict']), not row['agree'],
      math.inf if row['z'] is None else -row['z']))


def display(row: dict, label: dict[str, str]) -> dict[str, str]:
  """A line of the table."""
  p_value = row['corrected_p_value']
  return {'verdict': row['verdict'], 'network': label[row['base']], 'and': label[row['suspect']],
          'z': 'no test' if row['z'] is None else f'{row["z"]:z.1f}',
          'corrected p': 'no test' if p_value is None else p_text(math.log10(p_value))}


def facts(report: dict) -> dict:
  """What the page shows (`verdicts.render`)."""
  names, rows, suspect = report['networks'], report['rows'], report['settings']['suspect']
  label = dict(zip(names, shorten(names), strict=True))
  networks = [each | {'label': label[each['name']],
                      'closest': closest_text(each['name'], rows, label, suspect)}
              for each in report['about']]
  named = [row | {'base': label[row['base']], 'suspect': label[row['suspect']]}
           for row in ordered(rows)]
  compared = f'{counted(len(names) - 1, "network")} and {label[suspect]}' if suspect else (
      counted(len(names), 'network'))
  return {'title': f'{compared}: who is related?', 'verdict': None, 'summary': report['summary'],
          'alt': 'a tree of related groups, and the verdict on each pair', 'networks': networks,
          'pairs': named, 'left_out': report['left_out'], 'correction': correction(rows),
          **{name: report[name] for name in ('settings', 'environment', 'run')}}


def closest_text(name, rows, label, suspect):
  """What is said of a network's closest relative."""
  if found := pairs.closest(name, rows):
    other, row = found
    # Only what is one number is rounded to 1.00.
    alike = 'the same numbers' if row['identical'] else (
        'likeness > 0.99' if row['likeness'] >= 0.995 else f'likeness {row["likeness"]:.2f}')
    return f'{label[other]} ({alike})'
  partly = [label[other] for other, row in pairs.others(name, rows) if pairs.agree_in_part(row)]
  if partly:
    return f'not shown, but it agrees in part with {", ".join(partly)}'
  return 'none found' if suspect in (None, name) else f'not {label[suspect]}; others not compared'


def correction(rows: list[dict]) -> list[str]:
  """What the correction for the number of pairs does to verdicts."""
  tested = sum(row['p_value'] is not None for row in rows)
  withdrawn = sum(row['verdict'] != row['alone'] for row in rows)
  alpha = pairs.alpha_of(tested)
  effect = 'Of so few pairs it can change no verdict.' if alpha == thresholds.ALPHA else (
      'The correction can only turn "related" into "inconclusive", and did so for '
      f'{counted(withdrawn, "pair")}. A pair with a p-value up to {alpha:.1g} is certain to pass '
      'it.')
  return [
      'One pair in many agrees by chance, so that p-values are corrected for '
      f'{counted(tested, "pair")} (Benjamini and Yekutieli): of all pairs that are called related, '
      f'at most {pairs.FALSE_DISCOVERY_RATE:.0%} are expected to be so by chance. {effect} z, '
      'p-values of tests and reasons are those that the pair has by itself.']
