"""Which networks of a zoo are related? This program compares every pair of them.

    python -m experiments.lineage results/training_study_laptop
    python -m experiments.lineage my_llama/ their_llama/ results/pretrain_laptop/seed_42@0 \\
        tiny_llama2:7

Networks are given in the forms that experiments.seedprint takes. A run stands for each of its
checkpoints; a folder stands for all networks in it, of its runs for their latest checkpoints.

Each network is read once, and every pair is judged by the witnesses of experiments.seedprint, but
for those that turn the suspect into the basis of the base: a descendant whose channels were
permuted or rotated on purpose is found by that program alone. z is that of the strongest witness
that can accuse: about 0 if two networks are unrelated, and above 4 if they are related. p-values
are corrected for the number of pairs (Benjamini and Yekutieli, valid for dependent pairs). Networks
of one width read token ids below the smallest of their vocabularies. What a folder holds and cannot
be read is named and left out.

Writes results.json (a row per pair), matrix.csv (z) and figure.png (a heat map in the order of a
clustering). What was read of each network is kept in OUTPUT_DIR/dossiers: after a stop the same
command reads no network again, but judges all pairs anew.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import math
from pathlib import Path
import sys

import numpy as np
import scipy
from tqdm import tqdm

from bornbiased_jax import hosts, lineage, plotting
from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of, write_atomically
from bornbiased_jax.lineage import verdict
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.permutations import NUM_PERMUTATIONS
from bornbiased_jax.storage import checkpoint

from .shared import command_line, figures, networks, provenance
from .shared.networks import SETTINGS
from .shared.results import make_directory, write_json
from .shared.tables import table

MOST_SHOWN = 40
# With more networks than these, cells have no room for numbers.
MOST_WRITTEN = 20
# Of the pairs that are called related, at most this share is expected to be independent.
FALSE_DISCOVERY_RATE = 0.01
_SATURATED_Z = 20
_LAPTOP = dict(stream='auto') | networks.TOKENS
SCALES = {
    'smoke': _LAPTOP | dict(num_sequences=300, length=4),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(length=1024),
}


def main(settings, output_dir):
  record, probe = provenance.begin(), networks.probe_of(settings)
  models = find(settings.networks, output_dir, probe)
  make_directory(output_dir)
  print(f'{len(models)} networks, {math.comb(len(models), 2)} pairs', file=sys.stderr)
  sizes = smallest_vocabularies(models, probe)
  taken = {}
  for name in _bar(models, unit='network', desc='dossiers'):
    with _leaving_out(name not in settings.networks):
      taken[name] = take(name, dataclasses.replace(probe, num_ids=sizes[name]), output_dir,
                         settings.stream)
  check_enough(taken, settings.networks)
  rows = compare_all(taken)
  names = list(taken)
  write_json(output_dir / 'results.json', {
      'experiment': 'lineage', 'settings': vars(settings), 'environment': environment(),
      'run': record(), 'networks': names, 'about': [each.about for each in taken.values()],
      'rows': rows})
  z_MM = matrix(names, rows)
  write_matrix(output_dir / 'matrix.csv', names, z_MM)
  drawn = figures.write(draw(names, z_MM), output_dir)
  show(rows)
  print(f'wrote {output_dir}/results.json, matrix.csv and {drawn.name}')


def _bar(*items, **about):
  return tqdm(*items, **about, delay=1, leave=False, disable=not hosts.is_first())


def take(name, probe, output_dir, stream) -> Dossier:
  networks.tell_streamed(name, stream)
  with _bar(total=probe.num_sequences, desc=name[-40:], unit='seq') as bar:
    return lineage.dossier(name, probe, output_dir / 'dossiers', stream=stream,
                           on_batch=bar.update)


def find(given: list[str], output_dir: Path, probe) -> dict[str, ModelConfig | None]:
  """The model of each network that the command line names; None for a saved file.

  Raises:
    InputError: a network is not there, unless a folder holds it, or there are less
      than two.
  """
  models = {}
  for each in given:
    inside = expand(each, output_dir)
    for name in inside:
      with _leaving_out(inside != [each]):
        model = networks.look_up(name)
        networks.check_readable(name, model, probe)
        models[name] = model
  check_enough(models, given)
  return models


@contextlib.contextmanager
def _leaving_out(is_inside: bool):
  """A network that a folder holds and that cannot be read is named, and left out."""
  try:
    yield
  except InputError as error:
    if not is_inside:
      raise
    print(f'left out: {error}', file=sys.stderr)


def check_enough(found, given) -> None:
  """Raises InputError unless there are two networks."""
  if len(found) < 2:
    names = f'{", ".join(found)} alone was' if found else 'no network was'
    raise InputError(f'{names} found in {", ".join(given)}; name at least two different networks, '
                     'or a folder of them; see --help')


def smallest_vocabularies(models, probe) -> dict[str, int | None]:
  """How many ids each network reads: those that all networks of its width have."""
  known = {name: model for name, model in models.items() if model}
  smallest = {model.width: min(each.vocab_size for each in known.values()
                               if each.width == model.width) for model in known.values()}
  if probe.num_ids:
    smallest = dict.fromkeys(smallest, probe.num_ids)
  return {name: smallest[model.width] if model else None for name, model in models.items()}


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
            if child.is_dir() and child.name not in ('fingerprints', 'dossiers')
            and child.resolve() != output_dir.resolve()
            # A link to a folder that holds this one would lead back here.
            and not path.resolve().is_relative_to(child.resolve())]
  found = []
  for child in inside:
    names = expand(str(child), output_dir)
    found += names[-1:] if checkpoint.steps(child) else names
  return found + [str(child) for child in sorted(path.glob('*.npz'))]


def compare_all(taken: dict[str, Dossier]) -> list[dict]:
  """A row per pair, with p-values corrected over all pairs that can be compared."""
  rows, pairs = [], list(itertools.combinations(taken.items(), 2))
  # A single related pair among all must be able to survive the correction; above some 30
  # networks that would take too many permutations, and the reasons name the other program.
  most = max(NUM_PERMUTATIONS, min(10**6, math.ceil(
      1000 * len(pairs) * (1 + math.log(max(1, len(pairs)))))))
  bar = _bar(pairs, unit='pair', desc='pairs')
  for (a, of_a), (b, of_b) in bar:
    report = judge(of_a, of_b, most)
    rows.append({'base': a, 'suspect': b, 'verdict': report['verdict'],
                 'identical': report.get('identical', False),
                 'p_value': report.get('p_value'), 'z': strongest(report),
                 'z_of': {row['witness']: row['z'] for row in report.get('witnesses', [])},
                 'reasons': report['reasons']})
  correct(rows)
  return rows


def judge(base, suspect, num_permutations) -> dict:
  """The report on a pair; saved files that read another probe are not comparable."""
  try:
    return verdict.compare(base, suspect, num_permutations=num_permutations)
  except InputError as error:
    return {'verdict': 'not comparable', 'reasons': [str(error)]}


def strongest(report) -> float | None:
  """z of the witness with the largest one, of those that can accuse, or else of all."""
  heard = [row for row in report.get('witnesses', []) if row['z'] is not None]
  accusers = [row['z'] for row in heard if row['accuses']]
  return max(accusers or [row['z'] for row in heard], default=None)


def correct(rows) -> None:
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
          f'p-value is {p_value:.2g}. Compare it with experiments.seedprint.']


def matrix(names, rows) -> np.ndarray:
  """z of every pair, symmetric: infinite with itself, NaN if two networks are not comparable."""
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
  counts = {name: sum(row['verdict'] == name for row in rows) for name in verdict.VERDICTS}
  tested = [row for row in rows if row['z'] is not None]
  shown = sorted(tested, key=lambda row: -row['z'])[:MOST_SHOWN]
  if shown:
    print(table([display(row) for row in shown]))
  print(f'{len(rows)} pairs, the {len(shown)} strongest above: '
        + ', '.join(f'{count} {name}' for name, count in counts.items() if count))


def display(row) -> dict[str, str]:
  p_value = row.get('corrected_p_value')
  return {'network': row['base'][-40:], 'and': row['suspect'][-40:], 'z': f'{row["z"]:.1f}',
          'corrected p': '–' if p_value is None else p_value_text(math.log10(p_value)),
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
    ax.set_title('Related pairs are orange. Grey: not comparable; dark: itself')
    figure.colorbar(cells, ax=ax, shrink=0.7, ticks=range(0, _SATURATED_Z + 1, 5), extend='max',
                    label='z (unrelated: about 0; related: above 4)')
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
  command_line.run(main, 'lineage', SCALES, __doc__, SETTINGS, positional='networks',
                   several_hosts=True)
