"""Which networks of a zoo are related? This program compares every pair of them.

    python -m experiments.lineage results/training_study_laptop
    python -m experiments.lineage my_llama/ their_llama/ results/pretrain_laptop/seed_42@0 \\
        tiny_llama2:7

Networks are given in the forms that experiments.seedprint takes. A run stands for each of its
checkpoints; a folder stands for all networks in it, of its runs for their latest checkpoints, and
for saved signatures. What a folder holds and cannot be read is named and left out.

Each network is read once, and every pair is judged as experiments.seedprint does. z is the largest
one of the tests that decide: near or below 0 if two networks are unrelated, and above 5 if they are
related. p-values are upper bounds, corrected for the number of pairs (Benjamini and Yekutieli,
valid for dependent pairs). A pair that is called related alone, but not after this correction, is
inconclusive. All networks read token ids below the smallest of their vocabularies or, if one is a
saved signature, what it has read.

Writes results.json (a row per pair), matrix.csv (z) and figure.png (a heat map in the order of a
clustering). What was read of each network, its signature, is kept in OUTPUT_DIR/signatures: after a
stop the same command reads no network again, but judges all pairs anew.
"""

from collections.abc import Callable, Iterable
import csv
import dataclasses
import io
import itertools
import math
from pathlib import Path
import sys
from typing import Any, ClassVar

import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import hosts, lineage, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, write_atomically
from bornbiased_jax.lineage import Signature, resolve
from bornbiased_jax.lineage.evidence.archive import SUFFIX
from bornbiased_jax.lineage.sentences import p_text
from bornbiased_jax.lineage.verdict import VERDICTS
from bornbiased_jax.storage import checkpoint

from .shared import command_line, figures, networks, provenance
from .shared.network_settings import SharedInputs, Stream
from .shared.results import header, make_directory, write_json
from .shared.settings import setting
from .shared.tables import table

MOST_SHOWN = 40
# With more networks than these, cells have no room for numbers.
MOST_WRITTEN = 20
# Of the pairs that are called related, at most this share is expected to be independent.
FALSE_DISCOVERY_RATE = 0.01
_SATURATED_Z = 10
# What programs write beside networks.
_CACHES = ('signatures', 'hidden_states')

@dataclasses.dataclass(frozen=True)
class Settings(SharedInputs):
  networks: list[str] = dataclasses.field(default_factory=list)
  stream: Stream = setting('auto')
  num_sequences: int = setting(2000, smoke=1000)
  length: int = setting(64, smoke=4, paper=1024)

  WORDS: ClassVar = 'networks'


def main(settings, output_dir):
  record = provenance.begin()
  probe, names = find(settings.networks, output_dir, networks.probe_of(settings))
  make_directory(output_dir)
  print(f'{len(names)} networks, {math.comb(len(names), 2)} pairs', file=sys.stderr)
  taken = of_each(_bar(names, unit='network', desc='signatures'), settings.networks,
                  lambda name: take(name, probe, output_dir, settings.stream))
  rows, names = compare_all(taken), list(taken)
  show(rows)
  write_json(output_dir / 'results.json', header('lineage', settings, record()) | {
      'networks': names, 'about': [each.about for each in taken.values()], 'rows': rows})
  z_MM = matrix(names, rows)
  write_matrix(output_dir / 'matrix.csv', names, z_MM)
  drawn = figures.write(draw(names, z_MM), output_dir)
  print(f'wrote {output_dir}/results.json, matrix.csv and {drawn.name}')


def _bar(*items, **about):
  return tqdm(*items, **about, delay=1, leave=False, disable=not hosts.is_first())


def take(name: str, probe: Probe, output_dir: Path, stream: str) -> Signature:
  networks.tell_streamed(name, stream)
  with _bar(total=probe.num_sequences, desc=name[-40:], unit='seq') as bar:
    return lineage.signature(name, probe, output_dir / 'signatures', stream=stream,
                             on_batch=bar.update)


def find(given: list[str], output_dir: Path, probe: Probe) -> tuple[Probe, list[str]]:
  """What all networks of the command line read, and their names.

  Raises:
    InputError: a network is not there, unless a folder holds it, or there are less
      than two.
  """
  names = dict.fromkeys(name for each in given for name in expand(each, output_dir))
  known = of_each(names, given, networks.look_up)
  probe = networks.probe_of_all(probe, known.values())
  readable = of_each(known, given,
                     lambda name: networks.check_readable(name, known[name], probe))
  return probe, list(readable)


def of_each(names: Iterable[str], given: list[str], call: Callable[[str], Any]) -> dict[str, Any]:
  """What a function makes of each network.

  One that a folder holds and that cannot be read is named, and left out.

  Raises:
    InputError: a network that was named itself cannot be read, or there are less than two.
  """
  found = {}
  for name in names:
    try:
      found[name] = call(name)
    except InputError as error:
      if name in given:
        raise
      print(f'left out: {error}', file=sys.stderr)
  if len(found) < 2:
    alone = f'{", ".join(found)} alone was' if found else 'no network was'
    raise InputError(f'{alone} found in {", ".join(given)}; name at least two different networks, '
                     'or a folder of them; see --help')
  return found


def expand(given: str, output_dir: Path) -> list[str]:
  """A network by its name, all checkpoints of a run, or all networks that a folder holds.

  A run in a folder stands for its latest checkpoint.
  """
  path = path_of(given)
  if checkpoint.steps(path):
    return [f'{given.rstrip("/")}@{step}' for step in checkpoint.steps(path)]
  if not path.is_dir() or (path / 'config.json').exists():
    return [given]
  inside = [child for child in sorted(path.iterdir())
            if child.is_dir() and child.name not in _CACHES
            and child.resolve() != output_dir.resolve()
            # A link to a folder that holds this one would lead back here.
            and not path.resolve().is_relative_to(child.resolve())]
  found = []
  for child in inside:
    names = expand(str(child), output_dir)
    found += names[-1:] if checkpoint.steps(child) else names
  if not found and resolve.why_none(path):
    return [given]
  return found + [str(child) for suffix in (SUFFIX, '.gguf')
                  for child in sorted(path.glob(f'*{suffix}'))]


def compare_all(taken: dict[str, Signature]) -> list[dict]:
  """A row per pair, with p-values corrected over all pairs that can be tested."""
  rows, pairs = [], list(itertools.combinations(taken.items(), 2))
  for (a, of_a), (b, of_b) in _bar(pairs, unit='pair', desc='pairs'):
    report = lineage.compare(of_a, of_b)
    z = [row['z'] for row in report['tests'] if row['decides'] and row['z'] is not None]
    rows.append({'base': a, 'suspect': b, 'z': max(z, default=None),
                 'z_of': {row['test']: row['z'] for row in report['tests']},
                 **{name: report[name] for name in ('verdict', 'identical', 'p_value', 'reasons')}})
  correct(rows)
  return rows


def correct(rows: list[dict]) -> None:
  """Adds p-values corrected for the number of pairs, and withdraws what does not survive that."""
  tested = [row for row in rows if row['p_value'] is not None]
  if not tested:
    return
  corrected = scipy.stats.false_discovery_control([row['p_value'] for row in tested], method='by')
  for row, p_value in zip(tested, corrected, strict=True):
    row['corrected_p_value'] = float(p_value)
    # One pair in many is extreme by chance.
    if row['verdict'] == 'related' and not row['identical'] and p_value > FALSE_DISCOVERY_RATE:
      row['verdict'] = 'inconclusive'
      row['reasons'] = [
          f'Alone, this pair would be called related. Among {len(tested)} pairs its corrected '
          f'p-value is {p_value:.2g}.']


def matrix(names, rows) -> np.ndarray:
  """z of every pair, symmetric: infinite with itself, NaN if no test that decides applies."""
  index = {name: i for i, name in enumerate(names)}
  z_MM = np.full((len(names), len(names)), np.nan)
  np.fill_diagonal(z_MM, np.inf)
  for row in rows:
    i, j = index[row['base']], index[row['suspect']]
    z_MM[i, j] = z_MM[j, i] = np.nan if row['z'] is None else row['z']
  return z_MM


def write_matrix(path, names, z_MM) -> None:
  text = io.StringIO()
  written = lambda z: {np.inf: 'itself'}.get(z, '' if np.isnan(z) else round(float(z), 3))
  lines = [[name, *map(written, row)] for name, row in zip(names, z_MM, strict=True)]
  csv.writer(text).writerows([['z', *names], *lines])
  write_atomically(path, text.getvalue().encode())


def show(rows) -> None:
  counts = {name: sum(row['verdict'] == name for row in rows) for name in VERDICTS}
  tested = [row for row in rows if row['z'] is not None]
  shown = sorted(tested, key=lambda row: -row['z'])[:MOST_SHOWN]
  if shown:
    print(table([display(row) for row in shown]))
  print(f'{len(rows)} pairs, the {len(shown)} strongest above: '
        + ', '.join(f'{count} {name}' for name, count in counts.items() if count))


def display(row) -> dict[str, str]:
  p_value = row.get('corrected_p_value')
  return {'network': row['base'][-40:], 'and': row['suspect'][-40:], 'z': f'{row["z"]:.1f}',
          'corrected p': '–' if p_value is None else p_text(math.log10(p_value)),
          'verdict': row['verdict']}


def draw(names, z_MM):
  """z of every pair, related networks side by side; with numbers if there is room for them."""
  order = clustered(z_MM)
  shown_MM = z_MM[np.ix_(order, order)]
  labels = dict(labels=[shorten(names)[i] for i in order], parse_math=False)
  ticks, size = range(len(names)), min(14, max(5, 3.2 + 0.36 * len(names)))
  with plotting.style():
    figure = plotting.figure(size + 1, size)
    ax = figure.subplots()
    cells = plotting.heat(ax, shown_MM, plotting.COLORS[1], _SATURATED_Z,
                          numbers(shown_MM) if len(names) <= MOST_WRITTEN else None)
    plotting.heat(ax, np.where(np.eye(len(names)), 1, np.nan), '#444444')
    ax.set_xticks(ticks, rotation=90, **labels)
    ax.set_yticks(ticks, **labels)
    ax.set_aspect('equal')
    ax.set_title('Related pairs are orange. Grey: no test that decides applies')
    figure.colorbar(cells, ax=ax, shrink=0.7, ticks=range(0, _SATURATED_Z + 1, 5), extend='max',
                    label='largest z of a test that decides (unrelated: below 5)')
  return figure


def clustered(z_MM) -> list[int]:
  """An order of networks in which related ones are side by side."""
  similarity_MM = np.clip(np.nan_to_num(z_MM), 0, _SATURATED_Z) / _SATURATED_Z
  distance = 1 - similarity_MM[np.triu_indices(len(z_MM), 1)]
  hierarchy = scipy.cluster.hierarchy
  tree = hierarchy.optimal_leaf_ordering(hierarchy.average(distance), distance)
  return list(hierarchy.leaves_list(tree))


def numbers(z_MM) -> list[list[str]]:
  """The texts of the cells."""
  return [[f'{z:z.0f}' if np.isfinite(z) else '' for z in row] for row in z_MM]


def shorten(names) -> list[str]:
  """As many of the last parts of each name as tell them all apart."""
  parts = [Path(name).parts for name in names]
  for count in range(1, max(map(len, parts)) + 1):
    labels = ['/'.join(each[-count:])[-28:] for each in parts]
    if len(set(labels)) == len(names):
      break
  return labels


if __name__ == '__main__':
  command_line.run(main, 'lineage', Settings, __doc__, several_hosts=True)
