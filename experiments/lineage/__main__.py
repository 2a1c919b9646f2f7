"""Which models of a folder are related? Compares all, or one with the others.

    python -m experiments.lineage zoo/
    python -m experiments.lineage --suspect=new_model/ zoo/ ORG/MODEL results/pretrain_laptop/seed_1

Models are given in the forms that experiments.seedprint takes. A run stands for each of its
checkpoints; a folder stands for all models in it, the latest checkpoints of its runs, and its
saved signatures. What cannot be read is left out, and named with the reason on the console, in
results.json and on the page.

Each pair has the z, p-value and reasons that experiments.seedprint gives it. The program first says
how long it will take. The verdict is corrected for the number of pairs (Benjamini and
Yekutieli): a pair that is related by itself, but not after this correction, is inconclusive. No
verdict gets stronger.

Writes into OUTPUT_DIR (results/lineage_SCALE) results.json (a row per pair), report.html, one
self-contained page to send to others, matrix.csv (z) and figure.png. The signature of each model,
all that tests read of it, is kept in OUTPUT_DIR/signatures: after a stop the same command reads no
model again, but judges all pairs anew. A report on other models there moves to its own folder.

Exit codes: 0 some pair is related, 5 all are unrelated, 3 none is related and some are
inconclusive, 4 something was left out (with --strict), 2 wrong input, 1 a crash.
"""

from collections.abc import Iterable
import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import json
from pathlib import Path
import re
import sys

from tqdm import tqdm

from bornbiased_jax import hosts, lineage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.fields import optional, switch
from bornbiased_jax.files import path_of, write_atomically
from bornbiased_jax.lineage import Signature
from bornbiased_jax.storage import Model

from ..shared import networks, program, session, verdicts
from ..shared.base_settings import SharedInputs
from ..shared.results import differing, header, make_directory
from ..shared.settings import arguments, name_flag, setting
from . import pairs, picture, summary
from .folders import Finder

Known = dict[str, Model | Signature]
REPORT = 'results.json', 'report.html', 'matrix.csv'


class Settings(SharedInputs):
  networks: list[str] = arguments('FOLDER_OR_MODEL ...')
  suspect: str | None = setting(None, optional(str), 'compare only this model with each of '
                                'the others')
  strict: bool = setting(False, switch, 'exit with 4 if anything was left out')
  json: bool = setting(False, switch, 'print results.json, and nothing else')
  stream: str = setting('auto')
  num_sequences: int = setting(2000, smoke=1000)
  length: int = setting(64, smoke=4, paper=1024)


def main(settings, output_dir):
  record, probe = session.begin(), networks.probe_of(settings)
  finder, known = find(settings, output_dir, probe)
  settings = dataclasses.replace(settings, suspect=same_network(settings.suspect, known))
  todo = pairs_of(known, settings.suspect)
  reads = probes_of(todo, known, probe)
  verdicts.tell([(each, reads[name]) for name, each in known.items()
             if not isinstance(each, Signature)],
            [tuple(known[name].config for name in pair) for pair in todo])
  make_directory(output_dir)
  taken = finder.of_each(_bar(reads, unit='model', desc='signatures'),
                         lambda name: take(known[name], name, reads[name], output_dir,
                                           settings.stream))
  todo = [pair for pair in todo if taken.keys() >= set(pair)]
  rows = judge_all(todo, known, probe, taken, finder)
  found = {'networks': list(taken), 'about': about(taken), 'left_out': finder.left_out}
  report = header('lineage', settings, record()) | found | {
      'summary': summary.sentences(summary.label_of(found), rows, finder.left_out,
                                   settings.suspect),
      'groups': pairs.groups(taken, rows), 'rows': rows}
  write(report, output_dir)
  sys.exit(exit_code(rows, settings.strict and finder.left_out))


def _bar(*items, **about):
  return tqdm(*items, **about, delay=1, leave=False, disable=not hosts.is_first())


def find(settings, output_dir: Path, probe: Probe) -> tuple[Finder, Known]:
  """The models of the command line that can be looked up, and what was left out.

  Raises:
    InputError: a model that was named itself is not there, or there are less than two.
  """
  given = [name.rstrip('/') or name for name in settings.networks]
  finder = Finder(given, output_dir)
  names = dict.fromkeys(name for each in given for name in finder.expand(each))
  if settings.suspect is not None:
    name_flag('suspect', lineage.look_up, settings.suspect)
    suspect = same_network(settings.suspect, names)
    names |= {suspect: None}
    finder.given.append(suspect)
  known = finder.of_each(names, lineage.look_up)
  readable = finder.of_each(
      known, lambda name: networks.check_readable(name, known[name], probe))
  return finder, {name: known[name] for name in readable}


def same_network(suspect: str | None, known: Iterable[str]) -> str | None:
  """The name that a model has among those that are known."""
  if suspect is None:
    return None
  place = path_of(suspect)
  return next((name for name in known if place.exists() and path_of(name).resolve()
               == place.resolve()), suspect.rstrip('/'))


def pairs_of(known: Known, suspect: str | None) -> list[tuple[str, str]]:
  """(base, suspect) of all pairs, or of one model with each other."""
  if suspect is None:
    return list(itertools.combinations(known, 2))
  return [(name, suspect) for name in known if name != suspect]


def probes_of(todo, known, probe) -> dict[str, list[Probe]]:
  """What each model reads, for all of its pairs."""
  reads: dict[str, dict[Probe, None]] = {name: {} for name in known}
  for pair in todo:
    for name, each in zip(pair, pairs.probes(pair, known, probe), strict=True):
      reads[name][each] = None
  return {name: list(own) for name, own in reads.items()}


def take(network: Model | Signature, name: str, probes: list[Probe], output_dir: Path,
         stream: str) -> dict[Probe, Signature]:
  """The signatures of a model, for each text that it has read."""
  networks.tell_streamed(network, stream)
  with _bar(total=sum(probe.num_sequences for probe in probes), desc=name[-40:],
            unit='seq') as bar:
    return {probe: lineage.signature(network, probe, output_dir / 'signatures', stream=stream,
                                     on_batch=bar.update) for probe in probes}


def judge_all(todo, known, probe, taken, finder) -> list[dict]:
  """A row per pair, with p-values corrected over all pairs that can be tested.

  Of several pairs one that cannot be compared is left out.
  """
  rows = []
  for pair in _bar(todo, unit='pair', desc='pairs'):
    signatures = [taken[name][each] for name, each in
                  zip(pair, pairs.probes(pair, known, probe), strict=True)]
    with finder.leaving_out(' and '.join(pair)) if len(todo) > 1 else contextlib.nullcontext():
      rows.append(pairs.judge(pair, *signatures))
  pairs.correct(rows)
  return rows


def about(taken: dict[str, dict[Probe, Signature]]) -> list[dict]:
  """What each model is."""
  signatures = {name: next(iter(own.values())) for name, own in taken.items()}
  return [each.about | verdicts.describe_network(each) | {'digest': each.digest, 'name': name}
          for name, each in signatures.items()]


def write(report: dict, output_dir: Path) -> None:
  """Prints the report, and writes all files."""
  names, rows, suspect = report['networks'], report['rows'], report['settings']['suspect']
  keep_earlier(report, output_dir)
  write_matrix(output_dir / 'matrix.csv', names, rows)
  verdicts.write(
      report, output_dir, summary.text,
      lambda: picture.draw(summary.label_of(report), rows, suspect),
      functools.partial(verdicts.render, summary.facts(report)), 'matrix.csv')


def keep_earlier(report: dict, output_dir: Path) -> None:
  """Moves a report of other settings to a folder of its own, so that nothing is lost."""
  try:
    earlier = json.loads((output_dir / 'results.json').read_text())
    began, before = earlier['run']['started'], dict(earlier['settings'])
  except (OSError, ValueError, LookupError, TypeError):  # There is none.
    return
  if set(differing(before, report['settings'])) <= {'json', 'strict', 'stream'}:
    return
  folder = output_dir / f'report_of_{re.sub("[^0-9]+", "_", began)}'
  make_directory(folder)
  for file in [*output_dir.glob('figure.*'), *map(output_dir.joinpath, REPORT)]:
    if file.exists() and hosts.is_first():
      file.rename(folder / file.name)
  print(f'the report that was here, of other models or settings, is kept in {folder}',
        file=sys.stderr)


def write_matrix(path: Path, names: list[str], rows: list[dict]) -> None:
  """z of every pair, empty if no test that decides has a result."""
  z = {frozenset((row['base'], row['suspect'])): row['z'] for row in rows}
  z |= {frozenset((name,)): 'itself' for name in names}
  shown = lambda each: round(each, 3) if isinstance(each, float) else each
  text = io.StringIO()
  csv.writer(text).writerows([['z', *names], *(
      [name, *(shown(z.get(frozenset((name, other)))) for other in names)] for name in names)])
  write_atomically(path, text.getvalue().encode(errors='backslashreplace'))


def exit_code(rows: list[dict], is_incomplete) -> int:
  """The code of the strongest verdict, or that something is missing."""
  if is_incomplete:
    return 4
  found = {row['verdict'] for row in rows}
  return next((code for verdict, code in verdicts.EXIT_CODES.items() if verdict in found), 1)


if __name__ == '__main__':
  program.run(main, 'lineage', Settings, __doc__, several_hosts=True)
