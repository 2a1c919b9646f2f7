"""Experiments on ensembles: their cells, the loop over them, and what is measured and predicted.

An experiment is a list of cells. Each cell is one combination of settings, such as a model and a
sequence length, under which every seed is measured.
"""

from collections.abc import Callable
import functools
import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bornbiased_jax import configs, hosts
from bornbiased_jax.analysis import (
  chunks,
  ensemble,
  inter_sequence,
  predictions,
  similarity,
  theory,
)
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.simplified import StackConfig, stack
from bornbiased_jax.analysis.statistics import Statistic, combine
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flops
from bornbiased_jax.models.transformer import head_of, unembed

from .base_settings import Stacks, Transformers, text_of
from .results import Results
from .tables import mean_ci95, quantiles

# Theory draws the preferred tokens of so many networks.
NUM_NETWORKS = 300
# What a score of attention costs, on CPUs, in operations of matrix products.
_OF_SCORE = 2000
# Seconds that a user waits for without having been told.
_SHORT = 120
_BAR = '{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}'


class Cell(NamedTuple):
  """One combination of settings, under which `seeds`, or those of the settings, are measured.

  `fields` tell its rows from those of other cells, and `row` makes the others of what was measured
  of one network (`ensemble.measure`). `flops`, per sequence, are for the progress bar.
  """

  fields: dict
  ensemble: ensemble.Ensemble
  statistic: Statistic
  probe: Probe
  row: Callable[[dict], dict]
  flops: int
  readout: Callable | None = None
  seeds: list[int] | None = None


def transformer_cell(name: str, length: int, settings: Transformers, statistic: Callable,
                     row: Callable, readout: Callable | None = None, of_each: bool = False,
                     probe: Probe | None = None, **overrides) -> Cell:
  """The cell of a preset at one length.

  `statistic` and `readout` are functions of the configuration. With `of_each` every network reads
  sequences of its own (see `Probe`). A `probe` takes the place of the settings'. `overrides` change
  fields of the configuration, and become fields of the rows.
  """
  config = configs.get(name, dtype=settings.dtype, length=length, **overrides)
  return Cell(
      fields={'config': name, 'length': length} | overrides,
      ensemble=ensemble.transformer(config, settings.embedding_seed),
      statistic=statistic(config),
      probe=probe or Probe(settings.probe, settings.num_sequences, length, settings.probe_seed,
                           of_each=of_each, text=text_of(settings)),
      row=row,
      flops=flops.forward_flops(config, length, num_logits=1),
      readout=readout and readout(config),
  )


def stack_cell(fields: dict, config: StackConfig, length: int, settings: Stacks,
               statistic: Statistic, row: Callable) -> Cell:
  """The cell of a stack of simplified layers, each with Gaussian vectors of its own."""
  layer_flops = {'mlp': 4 * config.width * config.mlp_width}
  return Cell(
      fields=fields,
      ensemble=stack(config),
      statistic=statistic,
      probe=Probe('gaussian', settings.num_sequences, length, settings.probe_seed, of_each=True),
      row=row,
      flops=length * sum(layer_flops.get(layer, config.width) for layer in config.layers),
  )


def measure_cells(cells: list[Cell], settings: Stacks, results: Results) -> None:
  """Measures every cell and seed whose row the results lack, and shows a progress bar.

  The bar's length and time left count operations, since networks differ in size; its text
  counts networks.
  """
  cells = [cell._replace(seeds=cell.seeds or settings.seeds) for cell in cells]
  results.read_from({cell.probe.text.digest for cell in cells if cell.probe.text})
  _say_repeats(cells)
  total = sum(cell.flops * cell.probe.num_sequences * len(cell.seeds) for cell in cells)
  num_networks = sum(len(cell.seeds) for cell in cells)
  if not results.rows:
    _say_long(cells)
  with results.keeping(), tqdm(total=total, bar_format=_BAR, disable=not hosts.is_first()) as bar:
    for cell in cells:
      _measure_cell(cell, settings, results, bar, num_networks)


def _say_long(cells):
  work = sum(_work(cell) * cell.probe.num_sequences * len(cell.seeds) for cell in cells)
  # The rate is measured, too.
  if work > 1e12 and (seconds := work / flops.matmul_rate('float32')) > _SHORT and hosts.is_first():
    longest = max(cell.probe.length for cell in cells)
    print(f'sequences of up to {longest:,} positions: about {seconds / 60:.0f} min to measure',
          file=sys.stderr)


def _work(cell):
  """FLOPs of a sequence, with the cost of attention scores, which is more than their products."""
  config, num_scores = cell.ensemble.config, 0
  if isinstance(config, ModelConfig) and config.sublayers != 'mlp_only':
    num_scores = config.num_layers * config.num_heads * cell.probe.length**2
  return cell.flops + _OF_SCORE * num_scores


def _say_repeats(cells):
  """Windows are drawn anywhere in a text, so that a short one gives some more than once."""
  of_probe = {cell.probe: cell.ensemble.config for cell in cells if cell.probe.kind == 'text'}
  for probe, config in of_probe.items() if hosts.is_first() else ():
    windows_NT = np.asarray(probe.inputs(config, np.arange(probe.num_sequences)))
    if (different := len({window_T.tobytes() for window_T in windows_NT})) < len(windows_NT):
      print(f'{probe.text.name}: of {len(windows_NT)} windows of {probe.length} tokens, '
            f'{different} are different; two equal ones have cosine 1, in theory too')


def predict(cells: list[Cell], of_cell: Callable[[Cell], Any]) -> dict[tuple, Any]:
  """What theory says of each cell, by the values of its fields, with a progress bar."""
  bar = tqdm(cells, desc='theory', unit='cell', leave=False, disable=not hosts.is_first())
  return {tuple(cell.fields.values()): of_cell(cell) for cell in bar}


def predict_cosines(cells: list[Cell], results: Results) -> dict[tuple, np.ndarray]:
  """The cosine of sequences after each layer, [L], of each cell; complete runs have it."""
  if results.summary and all('layer_theory' in row for row in results.summary):
    return {tuple(row[name] for name in cells[0].fields): np.asarray(row['layer_theory'])
            for row in results.summary}
  return predict(cells, predicted_cosine)


def _measure_cell(cell, settings, results, bar, num_networks):
  label = ' '.join(map(str, cell.fields.values()))
  bar.set_description(f'{label}, compiling')

  def advance(sequences):
    bar.set_description(label, refresh=False)
    bar.update(cell.flops * sequences)

  done = {row['seed'] for row in results.rows if cell.fields.items() <= row.items()}
  bar.update(cell.flops * cell.probe.num_sequences * len(done.intersection(cell.seeds)))
  if done.issuperset(cell.seeds):
    return
  batch_size = settings.batch_size or chunks.batch_size_of(cell.ensemble.config, cell.probe)
  chunk_size = settings.chunk_size or chunks.default_chunk_size(
      cell.ensemble, cell.statistic, cell.probe, len(cell.seeds), batch_size)
  # A chunk that lacks a row is measured again as a whole, so that a
  # network always has the same companions.
  parts = [cell.seeds[i:i + chunk_size] for i in range(0, len(cell.seeds), chunk_size)]
  seeds = [seed for part in parts if not done.issuperset(part) for seed in part]
  for measured in ensemble.measure(
      cell.ensemble, cell.statistic, cell.probe, seeds, readout=cell.readout,
      batch_size=batch_size, chunk_size=chunk_size, on_batch=advance):
    if measured['seed'] not in done:
      results.add(cell.fields | {'seed': measured['seed']} | cell.row(measured))
      bar.set_postfix_str(f'{len(results.rows)} of {num_networks} networks', refresh=False)


# What is measured of a network, and what theory says of it.


def preference(config: ModelConfig, pair_std: bool = False) -> Statistic:
  """Which tokens the network predicts, the contraction direction, and similarity by layer."""
  return _preference(config.vocab_size, pair_std)


# One statistic for all networks of a vocabulary, so that what measures it is compiled once.
@functools.cache
def _preference(vocab_size, pair_std):
  return combine({
      'preference': predictions(vocab_size),
      'direction': inter_sequence('hidden_last', pair_std=True),
      'layers': inter_sequence('residual_last', pair_std=pair_std),
  })


# The same with the std of the similarities over pairs of sequences.
contraction = functools.partial(preference, pair_std=True)


@functools.cache
def direction_token(config: ModelConfig):
  """The readout of the token that the contraction direction predicts (Finding 2.2)."""

  def readout(params, sums):
    logits_V = unembed(config, head_of(config, params), sums['direction']['unit_sum'])
    return {'direction_top1_id': jnp.argmax(logits_V)}

  return readout


def contraction_row(measured: dict) -> dict:
  """The row of a network whose `contraction` and `direction_token` were measured."""
  return {
      **measured['preference'],
      'direction_top1_id': measured['direction_top1_id'],
      **layers_row(measured['layers']),
      'inter_sequence_cosine': measured['layers']['cosine'][-1],
  }


def contraction_summary(rows: list[dict], theory_L: np.ndarray, num_sequences: int,
                        width: int) -> dict:
  """What several such rows say of the similarity of sequences, with theory."""
  cosines = [row['inter_sequence_cosine'] for row in rows]
  return {
      'networks': len(rows), **mean_ci95(rows, 'inter_sequence_cosine'),
      'theory_cosine': theory_L[-1],
      'layer_cosine': np.mean([row['layer_cosine'] for row in rows], axis=0),
      'layer_theory': theory_L,
      'pair_std': np.mean([row['layer_cosine_std'][-1] for row in rows]),
      'median_log10_p_isotropic': median_log10_p(cosines, num_sequences, width)}


def layers_row(measured: dict) -> dict:
  """Similarity of sequences after each layer, and its std over pairs."""
  return {'layer_cosine': measured['cosine'], 'layer_cosine_std': measured['cosine_std']}


def median_log10_p(cosines: list[float], num_sequences: int, width: int) -> float:
  """Median over networks of log10 p that isotropic vectors are as similar (Tables 2 and 3)."""
  return float(np.median(similarity.isotropic_log10_p(cosines, num_sequences, width)))


def unless_unknown(ask: Callable[[], Any], nothing: Any) -> Any:
  """What theory says; `nothing`, and a line that says so, of an architecture it does not know."""
  try:
    return ask()
  except InputError as error:
    _say_once(f'no theory: {error}')
    return nothing


@functools.cache
def _say_once(message):
  tqdm.write(message, file=sys.stderr)


def predicted_similarity(cell: Cell):
  """What theory says of the similarity of sequences; with finite width up to 1,300 tokens."""
  config, probe = cell.ensemble.config, cell.probe
  nothing = theory.FiniteWidth(np.full(config.num_layers, np.nan), *[np.float32(np.nan)] * 3)
  return unless_unknown(lambda: theory.finite_width(config, probe.length, read(probe)), nothing)


def read(probe: Probe) -> str | Probe:
  """What theory reads of a probe: of random sequences only their kind, so that it asks once."""
  return probe if probe.text else probe.kind


def predicted_cosine(cell: Cell) -> np.ndarray:
  """The cosine of sequences after each layer, [L]."""
  return np.asarray(predicted_similarity(cell).inter_cosine_L)


@functools.cache
def preferred_tokens(config: ModelConfig, num_sequences: int, other_length: int | None = None,
                     probe: str | Probe = 'tokens') -> dict:
  """What theory says of the preferred tokens of random networks, as fields of a row."""
  found = unless_unknown(lambda: theory.preference_at_initialization(
      config, config.length, num_sequences, probe, other_length=other_length,
      num_networks=NUM_NETWORKS), theory.Preference(*np.full((4, 1), np.nan)))
  return {'theory_top1_frequency': found.top1_frequency_N.mean(),
          'theory_top1_frequency_std': found.top1_frequency_N.std(),
          **quantiles(found.top1_frequency_N, 'theory_top1_frequency'),
          'theory_direction_agreement': found.direction_agrees_N.mean(),
          'theory_same_id': found.same_token_N.mean()}
