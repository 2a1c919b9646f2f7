"""Which networks of a zoo are related? This program compares every pair of them.

    python -m experiments.lineage results/training_study_laptop
    python -m experiments.lineage my_llama/ their_llama/ results/pretrain_laptop/seed_42@0 \\
        tiny_llama2:7

Networks are given in the forms that experiments.seedprint takes. A folder of networks stands for
all of them, and a run for each of its checkpoints.

Each network reads the probe once, and every pair of fingerprints is compared. z says by how many
standard deviations two networks agree better, channel by channel, than they do when the channels of
one are permuted: about 0 if they are unrelated, above 3.7 (p < 1e-4) if they are related. p-values
are corrected for the number of pairs (Benjamini and Yekutieli, valid for dependent pairs).

Writes results.json (a row per pair), matrix.csv (z) and figure.png (a heat map in the order of a
clustering). Fingerprints are kept in OUTPUT_DIR/fingerprints.
"""

import csv
import io
import itertools
import math
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.cluster import hierarchy
from tqdm import tqdm

from bornbiased_jax import plotting
from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.environment import environment
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically
from bornbiased_jax.lineage import verdict
from bornbiased_jax.storage import checkpoint
from experiments.shared import command_line, networks
from experiments.shared.networks import SETTINGS
from experiments.shared.results import make_directory, table, write_json

MOST_SHOWN = 40
_SATURATED_Z = 20
SCALES = {
    'smoke': networks.PROBE | dict(num_sequences=300, length=4),
    'laptop': networks.PROBE,
    'paper': networks.PROBE | dict(length=1024),
}


def main(settings, output_dir):
  probe = networks.probe_of(settings)
  names = find(settings.networks, output_dir, probe)
  make_directory(output_dir)
  bar = tqdm(names, unit='network', desc='fingerprints', delay=1, leave=False)
  prints = [networks.take(name, probe, output_dir / 'fingerprints') for name in bar]
  rows = compare_all(names, prints)
  write_json(output_dir / 'results.json', {
      'experiment': 'lineage', 'settings': vars(settings), 'environment': environment(),
      'networks': names, 'rows': rows})
  z_MM = matrix(names, rows)
  write_matrix(output_dir / 'matrix.csv', names, z_MM)
  plotting.save(draw(names, z_MM), output_dir / 'figure.png')
  show(rows)
  print(f'wrote {output_dir}/results.json, matrix.csv and figure.png')


def find(given: list[str], output_dir: Path, probe) -> list[str]:
  """The networks that the command line names, each once; raises InputError if one is not there."""
  names = [name for each in given for name in expand(each, output_dir)]
  models = {name: networks.look_up(name) for name in names}
  if len(models) < 2:
    raise InputError('name at least two different networks, or a folder of them; see --help')
  networks.check_probe(models, probe)
  return list(models)


def expand(given: str, output_dir: Path) -> list[str]:
  """A network by its name, or all that a folder holds; a run stands for its checkpoints."""
  path = Path(given).expanduser()
  if checkpoint.steps(path):
    return [f'{given.rstrip("/")}@{step}' for step in checkpoint.steps(path)]
  if not path.is_dir() or (path / 'config.json').exists():
    return [given]
  inside = [child for child in sorted(path.iterdir())
            if child.is_dir() and child.name != 'fingerprints'
            and child.resolve() != output_dir.resolve()]
  found = [name for child in inside for name in expand(str(child), output_dir)]
  return found + [str(child) for child in sorted(path.glob('*.npz'))]


def compare_all(names, prints) -> list[dict]:
  """A row per pair, with p-values corrected over all pairs that can be compared."""
  rows, named = [], list(zip(names, prints, strict=True))
  bar = tqdm(list(itertools.combinations(named, 2)), unit='pair', desc='pairs', delay=1,
             leave=False)
  for (a, print_a), (b, print_b) in bar:
    report, _ = verdict.compare(print_a, print_b)
    kept = {name: report[name] for name in ('verdict', 'statistic', 'z', 'log10_p')}
    rows.append({'base': a, 'suspect': b} | kept)
  correct(rows)
  return rows


def correct(rows) -> None:
  """Adds p-values corrected for the number of pairs, and withdraws what does not survive that."""
  tested = [row for row in rows if row['z'] is not None]
  if not tested:
    return
  p_values = [10.0**row['log10_p'] for row in tested]
  corrected = stats.false_discovery_control(p_values, method='by')
  for row, p_value in zip(tested, corrected, strict=True):
    row['corrected_p_value'] = float(p_value)
    # One pair in many is extreme by chance.
    if row['verdict'] == 'related' and p_value > verdict.UNRELATED_ABOVE:
      row['verdict'] = 'inconclusive'


def matrix(names, rows) -> np.ndarray:
  """z of every pair, symmetric; NaN on the diagonal and for networks that are not comparable."""
  index = {name: i for i, name in enumerate(names)}
  z_MM = np.full((len(names), len(names)), np.nan)
  for row in rows:
    i, j = index[row['base']], index[row['suspect']]
    z_MM[i, j] = z_MM[j, i] = np.nan if row['z'] is None else row['z']
  return z_MM


def write_matrix(path, names, z_MM) -> None:
  text = io.StringIO()
  lines = [[name, *np.round(row, 3)] for name, row in zip(names, z_MM, strict=True)]
  csv.writer(text).writerows([['z', *names], *lines])
  write_atomically(path, text.getvalue().encode())


def show(rows) -> None:
  counts = {name: sum(row['verdict'] == name for row in rows) for name in verdict.VERDICTS}
  tested = [row for row in rows if row['z'] is not None]
  strongest = sorted(tested, key=lambda row: -row['z'])[:MOST_SHOWN]
  if strongest:
    print(table([display(row) for row in strongest]))
  print(f'{len(rows)} pairs, the {len(strongest)} strongest above: '
        + ', '.join(f'{count} {name}' for name, count in counts.items() if count))


def display(row) -> dict[str, str]:
  log10_p = math.log10(max(row['corrected_p_value'], 1e-300))
  return {'network': row['base'][-40:], 'and': row['suspect'][-40:],
          't': f'{row["statistic"]:.4f}', 'z': f'{row["z"]:.1f}',
          'corrected p': p_value_text(log10_p), 'verdict': row['verdict']}


def draw(names, z_MM):
  """z of every pair, related networks side by side."""
  similarity_MM = np.clip(np.nan_to_num(z_MM), 0, _SATURATED_Z) / _SATURATED_Z
  distance = 1 - similarity_MM[np.triu_indices(len(names), 1)]
  tree = hierarchy.optimal_leaf_ordering(hierarchy.average(distance), distance)
  order = hierarchy.leaves_list(tree)
  common = len(Path(*_common_parts(names)).as_posix()) + 1 if _common_parts(names) else 0
  with plotting.style():
    size = min(12, 3 + 0.22 * len(names))
    figure = plotting.figure(size + 1.5, size)
    ax = figure.subplots()
    image = ax.imshow(z_MM[np.ix_(order, order)], cmap='RdBu_r', vmin=-_SATURATED_Z,
                      vmax=_SATURATED_Z)
    labels = [names[i][common:][-28:] for i in order]
    ax.set_xticks(range(len(names)), labels, rotation=90, fontsize='x-small')
    ax.set_yticks(range(len(names)), labels, fontsize='x-small')
    ax.grid(False)
    ax.set_title('Related pairs are red (z, cut off at ±20)')
    figure.colorbar(image, ax=ax, shrink=0.7, label='z')
  return figure


def _common_parts(names):
  columns = zip(*(Path(name).parts[:-1] for name in names), strict=False)
  is_common = lambda column: len(set(column)) == 1
  return [column[0] for column in itertools.takewhile(is_common, columns)]


if __name__ == '__main__':
  command_line.run(main, 'lineage', SCALES, __doc__, SETTINGS, positional='networks')
