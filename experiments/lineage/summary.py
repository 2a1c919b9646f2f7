"""What a comparison says, for the console and for the page."""

import math
import textwrap

from bornbiased_jax.lineage.sentences import p_text

from ..shared.figures import isolated
from ..shared.tables import table
from ..shared.verdicts import ANSWERS, EXIT_CODES, counted, labels
from . import pairs, picture

MOST_SHOWN = 40
MOST_NAMED = 6
_WIDTH = 100


def sentences(label: dict[str, str], rows: list[dict], left_out: list[dict],
              suspect: str | None) -> list[str]:
  """Who is related, what was compared, who agrees in part, what could not be said or read.

  `label` has what each model is called, by its name.
  """
  count = {verdict: sum(row['verdict'] == verdict for row in rows) for verdict in EXIT_CODES}
  compared = (f'{label[suspect]} was compared with {counted(len(rows), "other model")}, which were '
              'not compared with each other' if suspect else
              f'{counted(len(label), "model")} were compared with each other: '
              f'{counted(len(rows), "pair")}')
  partly = [row for row in rows if pairs.agree_in_part(row)]
  return [
      *(sentence for _, sentence in answers(label, rows, suspect)),
      f'{compared}, '
      + ', '.join(f'{number:,} {verdict}' for verdict, number in count.items() if number) + '.',
      *([_in_part(partly, label)] if partly else []),
      *_unsaid(count['inconclusive'] - len(partly), left_out)]


def answers(label: dict[str, str], rows: list[dict], suspect: str | None) -> list[tuple[str, str]]:
  """A verdict and a sentence for each group of related models, or that there is none."""
  copies = pairs.groups(label, rows, lambda row: row['identical'])
  found = [('related', _in_common(group, label, suspect, 'related'))
           for group in pairs.groups(label, rows) if group not in copies]
  more = ' Their configurations differ.' * any(row['identical'] and row['caveats'] for row in rows)
  found += [('related', _in_common(group, label, suspect, 'identical') + more) for group in copies]
  if found:
    return found
  unsaid = [row for row in rows if row['verdict'] == 'inconclusive']
  verdict = 'inconclusive' if unsaid else 'unrelated'
  if suspect or len(label) == 2:
    left = {name for row in unsaid or rows for name in (row['base'], row['suspect'])}
    return [(verdict, _in_common(sorted(left, key=list(label).index), label, suspect, verdict))]
  return [(verdict, f'No common origin is shown, and for {counted(len(unsaid), "pair")} of '
           f'{len(rows)} it is not excluded.' if unsaid else
           f'No common origin was found between any two of these {len(label)} models.')]


def _in_common(group, label, suspect, verdict):
  """What a verdict says of one model and the others of a group, or of all of them."""
  one = suspect if suspect in group else group[-1]
  others = listed([label[name] for name in group if name != one])
  if len(group) == 2 or suspect:
    return ANSWERS[verdict].format(label[one], others)
  return (f'The same numbers are in {others} and {label[one]}.' if verdict == 'identical' else
          f'{listed([label[name] for name in group])} have a common origin, each with at least one '
          'other of them.')


def listed(names: list[str]) -> str:
  """
  >>> listed(['a']), listed(['a', 'b', 'c'])
  ('a', 'a, b and c')
  """
  return ' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))


def _in_part(rows, label):
  shown = [listed([label[row['base']], label[row['suspect']]]) for row in rows[:MOST_NAMED]]
  return (f'{counted(len(rows), "pair")} agree{"s" * (len(rows) == 1)} in something, which does '
          f'not show descent and does not clear them: {_named(shown, len(rows))}. Read why.')


def _unsaid(num_inconclusive, left_out):
  said = []
  if num_inconclusive:
    said.append(f"For {counted(num_inconclusive, 'pair')} no relation is shown or excluded. "
                'Read their reasons.')
  if left_out:
    names = [each['name'].rsplit('/')[-1] for each in left_out[:MOST_NAMED]]
    said.append(f'Left out, as they could not be read: {_named(names, len(left_out))}.')
  return said


def _named(names, count):
  """The first names, and how many more there are."""
  return '; '.join(names) + (f'; and {count - MOST_NAMED} more' if count > MOST_NAMED else '')


def label_of(report: dict) -> dict[str, str]:
  """What each model is called, by its name."""
  return dict(zip(report['networks'], labels(report['about']), strict=True))


def text(report: dict) -> str:
  """The report for a console: sentences, the strongest pairs, and why some were not judged."""
  label = label_of(report)
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
      not row['identical'], [*EXIT_CODES].index(row['verdict']), not row['agree'],
      math.inf if row['z'] is None else -row['z']))


def display(row: dict, label: dict[str, str]) -> dict[str, str]:
  """A line of the table."""
  p_value = row['corrected_p_value']
  return {'verdict': row['verdict'], 'model': label[row['base']], 'and': label[row['suspect']],
          'z': 'no test' if row['z'] is None else f'{row["z"]:z.1f}',
          'corrected p': 'no test' if p_value is None else p_text(math.log10(p_value))}


def facts(report: dict) -> dict:
  """What the page shows (`verdicts.render`)."""
  suspect = report['settings']['suspect']
  rows = [row | {'number': i} for i, row in enumerate(ordered(report['rows']), 1)]
  label = {name: isolated(shown) for name, shown in label_of(report).items()}
  answered = answers(label, rows, suspect)
  said = sentences(label, rows, report['left_out'], suspect)[len(answered):]
  networks = [each | {'label': label[each['name']],
                      'closest': closest_text(each['name'], rows, label, suspect)}
              for each in report['about']]
  named = [row | {'names': (row['base'], row['suspect']), 'base': label[row['base']],
                  'suspect': label[row['suspect']]} for row in rows]
  order = [] if suspect or len(label) == 2 else picture.in_order(list(label), rows)
  matrix = zip(map(label.get, order), picture.cells(rows, order, order), strict=True)
  return {'answers': answered, 'summary': said, 'networks': networks, 'pairs': named,
          'matrix': list(matrix), 'rate': pairs.FALSE_DISCOVERY_RATE,
          'alpha': pairs.alpha_of(sum(row['p_value'] is not None for row in rows)),
          **{name: report[name] for name in ('left_out', 'settings', 'environment', 'run')}}


def closest_text(name, rows, label, suspect):
  """What is said of a model's closest relative."""
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
