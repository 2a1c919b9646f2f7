"""What a comparison says, for the console and for the page."""

import math
import textwrap

from bornbiased_jax.lineage.sentences import p_text
from bornbiased_jax.lineage.verdict import VERDICTS

from ..shared.cost import counted
from ..shared.tables import table
from . import pairs
from .picture import shorten

MOST_SHOWN = 40
_WIDTH = 100
_ORDER = ('related', 'inconclusive', 'unrelated')


def sentences(names: list[str], rows: list[dict], left_out: list[dict],
              suspect: str | None) -> list[str]:
  """Three: what was compared, who is related, and what could not be said or read."""
  label = dict(zip(names, shorten(names), strict=True))
  count = {verdict: sum(row['verdict'] == verdict for row in rows) for verdict in VERDICTS}
  compared = (f'with {label[suspect]} alone' if suspect else 'with each other')
  return [
      f'{counted(len(names), "network")} were compared {compared}: {counted(len(rows), "pair")}, '
      + ', '.join(f'{count[verdict]} {verdict}' for verdict in _ORDER if count[verdict]) + '.',
      _identical(rows, label)
      + _related([[label[name] for name in group] for group in pairs.groups(names, rows)]),
      _unsaid(count['inconclusive'], left_out)]


def _identical(rows, label):
  return ''.join(f'{label[row["base"]]} and {label[row["suspect"]]} are identical. '
                 for row in rows if row['identical'])


def _related(groups):
  if not groups:
    return 'No two of them were found to be related.'
  listed = '; and '.join(f'{", ".join(group[:-1])} and {group[-1]}' for group in groups)
  return (f'Related, each with at least one other of its group: {listed}. Who came first is not '
          'known.')


def _unsaid(num_inconclusive, left_out):
  said = []
  if num_inconclusive:
    said.append(f'{counted(num_inconclusive, "pair")} could not be judged')
  if left_out:
    said.append(f'{counted(len(left_out), "other thing")} could not be read')
  return f'{" and ".join(said)}; a reason is given for each.' if said else (
      'Every pair could be judged, and everything could be read.')


def text(report: dict) -> str:
  """The report for a console: sentences, the strongest pairs, and why some were not judged."""
  label = dict(zip(report['networks'], shorten(report['networks']), strict=True))
  rows = ordered(report['rows'])
  parts = ['\n'.join(textwrap.fill(each, _WIDTH) for each in report['summary']),
           table([display(row, label) for row in rows[:MOST_SHOWN]])]
  if len(rows) > MOST_SHOWN:
    parts.append(f'{len(rows) - MOST_SHOWN} more pairs are in results.json and report.html.')
  why = [f'{label[row["base"]]}, {label[row["suspect"]]}: '
         + (row['correction'] or ' '.join(row['reasons']))
         for row in rows[:MOST_SHOWN] if row['verdict'] == 'inconclusive']
  return '\n\n'.join(parts + ['\n'.join(textwrap.fill(
      each, _WIDTH, subsequent_indent='  ') for each in why)] * bool(why))


def ordered(rows: list[dict]) -> list[dict]:
  """Identical and then related pairs first, and within a verdict the largest z first."""
  return sorted(rows, key=lambda row: (
      not row['identical'], _ORDER.index(row['verdict']),
      -math.inf if row['z'] is None else -row['z']))


def display(row: dict, label: dict[str, str]) -> dict[str, str]:
  """A line of the table."""
  p_value = row['corrected_p_value']
  return {'verdict': row['verdict'], 'network': label[row['base']], 'and': label[row['suspect']],
          'z': 'no test' if row['z'] is None else f'{row["z"]:z.1f}',
          'corrected p': 'no test' if p_value is None else p_text(math.log10(p_value))}


def facts(report: dict) -> dict:
  """What the page shows (`verdict_page.render`)."""
  names, rows, suspect = report['networks'], report['rows'], report['settings']['suspect']
  label = dict(zip(names, shorten(names), strict=True))
  networks = [each | {'label': label[each['name']], 'closest': _closest(each['name'], rows, label)}
              for each in report['about']]
  named = [row | {'base': label[row['base']], 'suspect': label[row['suspect']]}
           for row in ordered(rows)]
  compared = f'{counted(len(names) - 1, "network")} and {label[suspect]}' if suspect else (
      counted(len(names), 'network'))
  return {'title': f'{compared}: who is related?', 'verdict': None, 'summary': report['summary'],
          'alt': 'a tree of related groups, and the verdict on each pair', 'networks': networks,
          'pairs': named, 'left_out': report['left_out'], 'correction': correction(rows),
          **{name: report[name] for name in ('settings', 'environment', 'run')}}


def _closest(name, rows, label):
  found = pairs.closest(name, rows)
  return found and f'{label[found[0]]} (likeness {found[1]:.2f})'


def correction(rows: list[dict]) -> list[str]:
  """What the correction for the number of pairs does to verdicts."""
  tested = sum(row['p_value'] is not None for row in rows)
  withdrawn = sum(row['verdict'] != row['alone'] for row in rows)
  return [
      'One pair in many agrees by chance, so that p-values are corrected for '
      f'{counted(tested, "pair")} (Benjamini and Yekutieli): of all pairs that are called related, '
      f'at most {pairs.FALSE_DISCOVERY_RATE:.0%} are expected to be so by chance. The correction '
      'can only turn "related" into "inconclusive", and did so for '
      f'{counted(withdrawn, "pair")}. A pair with a p-value up to {pairs.alpha_of(tested):.1g} '
      'is certain to pass it. z, p-values of tests and reasons are those that the pair has by '
      'itself.']
