"""How unequal is the load of experts at initialization?

A router reads states that contraction has made alike, so that most tokens agree on an expert, which
the seed fixes. Routers with as many experts as --num_experts says are drawn to read the states of
random networks, behind the norm of each MLP; a --config that has experts is read by its own. The
highest and the lowest load of an expert are compared with theory.expert_shares at every layer,
and the expert with the highest load with the one that the mean direction of all states predicts. No
number is fitted. If an expert is chosen and counted on the same tokens, its load has their luck
too; 'on others', it is chosen on one half of the sequences and counted on the other. A network has
the same routers at every length.

    python -m experiments.experts                       # 15 min on two CPU cores
    python -m experiments.experts --config=tiny_gpt2,num_experts=16,experts_per_token=2

Prints a table with a line per model, length and number of experts. Writes results.json (a row per
network) and figure.png.
"""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import Probe, inter_sequence, theory
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, whole
from bornbiased_jax.models import read
from bornbiased_jax.models.initialization import stream_key
from bornbiased_jax.models.layers import chosen

from .shared import program
from .shared.base_settings import Transformers
from .shared.measurements import Cell, measure_cells, predict, transformer_cell
from .shared.settings import setting
from .shared.tables import ci95, grouped, median, quantiles

# Routers that are drawn for each layer of a network without experts.
NUM_ROUTERS = 16
MEANS = 'busiest', 'idlest', 'direction_agrees'
# How a figure says a field of a model's name; what follows from others, or all models have, is left
# out.
WORDS = {'activation': '{}', 'init_scheme': '{}', 'width': 'width {}', 'num_layers': '{} layers',
         'num_experts': 'own experts', 'experts_per_token': '{} per token'}


class Settings(Transformers):
  config: list[str] = setting(
      ['tiny_gpt2', 'tiny_gpt2,activation=relu', 'tiny_gpt2,init_scheme=centred',
       'tiny_gpt2,num_heads=12,width=768,mlp_width=3072',
       'tiny_gpt2,num_heads=12,width=768,mlp_width=3072,activation=relu', 'tiny_llama2',
       'tiny_gpt2,num_experts=8', 'tiny_gpt2,num_experts=8,experts_per_token=2', 'tiny_moe'],
      smoke=['tiny_gpt2,num_layers=1', 'tiny_gpt2,num_layers=1,num_experts=4'],
      paper=['nano_gpt2', 'nano_llama2'])
  seeds: list[int] = setting(range(20), smoke=range(3))
  num_sequences: int = setting(200, smoke=40, paper=1000)
  lengths: list[int] = setting([64], smoke=[8])
  num_experts: list[int] = setting(
      [4, 8, 64, 256], listed(whole), 'experts of the routers that read networks without any, '
      'comma-separated', smoke=[4])
  dtype: str = setting('float32', paper='bfloat16')


def main(settings, results):
  found = cells(settings)
  # What theory does not know is refused before it is measured.
  predicted = {} if results.summary else predict(found, theory_of)
  measure_cells(found, settings, results)
  summary = results.summary or summarize(results.rows, predicted)
  results.finish(summary, display, lambda: draw(summary))


def cells(settings) -> list[Cell]:
  """An ensemble for each model, length, and number of experts."""
  found = []
  for name in settings.config:
    config = configs.get(name)
    if config.sublayers == 'attention_only':
      raise InputError(f'--config: {name} has no MLP, whose input a router reads')
    counts = settings.num_experts if config.num_experts == 1 else [config.num_experts]
    for length in settings.lengths:
      for count in counts:
        cell = transformer_cell(name, length, settings,
                                lambda config: inter_sequence('residual_last'), row)
        found.append(cell._replace(fields=cell.fields | {'num_experts': count},
                                   readout=shares(cell.ensemble.config, cell.probe, count)))
  return found


def shares(config: ModelConfig, probe: Probe, num_experts: int):
  """The highest and the lowest load of each router, as a readout of `ensemble.measure`."""
  key = stream_key('routers', probe.seed)

  def readout(params, sums):
    tokens = probe.inputs(config, jnp.arange(probe.num_sequences))
    states_LBTD = read(config, params, tokens, ('mlp_input',))['mlp_input']
    routers_LRDE = (params['blocks']['router']['kernel'][:, None] if config.num_experts > 1 else
                    jax.random.normal(key, (len(states_LBTD), NUM_ROUTERS, config.width,
                                            num_experts)))
    return lax.map(lambda layer: _of_layer(config.experts_per_token, *layer),
                   (states_LBTD, routers_LRDE))

  return readout


def _of_layer(num_chosen, states_BTD, routers_RDE):
  """Of each router R of a layer, one after another, as there may be many experts."""
  states_ND = states_BTD.reshape(-1, states_BTD.shape[-1]).astype(jnp.float32)

  def of_router(router_DE):
    logits_NE = states_ND @ router_DE
    chosen_NE = chosen(logits_NE, num_chosen) / num_chosen
    share_E, busiest = chosen_NE.mean(axis=0), jnp.argmax(chosen_NE.sum(axis=0))
    first = len(states_BTD) // 2 * states_BTD.shape[1]  # Half of the sequences.
    halves = chosen_NE[:first].mean(axis=0), chosen_NE[first:].mean(axis=0)
    return {'busiest': share_E.max(), 'idlest': share_E.min(), 'busiest_id': busiest,
            'again': theory.load_of_others(halves),
            'direction_agrees': jnp.argmax(logits_NE.mean(axis=0)) == busiest}

  return lax.map(of_router, routers_RDE)


def row(measured):
  """Means over the routers of a layer, which `busiest_id` and `again_LR` have one by one."""
  return {name: measured[name].mean(axis=-1) for name in MEANS} | {
      'busiest_std': measured['busiest'].std(axis=-1), 'busiest_id': measured['busiest_id'],
      'again_LR': np.round(measured['again'].astype(float), 4),
      'layer_cosine': measured['cosine']}


def theory_of(cell: Cell) -> dict:
  """What theory says of a cell, by layer."""
  reads = cell.ensemble.config, cell.probe.length, cell.probe
  share_LNE, again_LN = theory.expert_shares(*reads, num_experts=cell.fields['num_experts'])
  busiest_LN = share_LNE.max(axis=-1)
  return {'theory_busiest': busiest_LN.mean(axis=-1), 'theory_busiest_std': busiest_LN.std(axis=-1),
          'theory_idlest': share_LNE.min(axis=-1).mean(axis=-1),
          'theory_again': again_LN.mean(axis=-1), **quantiles(again_LN[-1], 'theory_again'),
          'theory_cosine': np.asarray(theory.finite_width(*reads).inter_cosine_L)}


def summarize(rows, theory):
  """Means over networks by layer, and by how much theory is off where it is so most."""
  summary, first = [], {}
  for fields, group in grouped(rows, 'config', 'length', 'num_experts'):
    of = {name: np.array([row[name] for row in group]) for name in (
        *MEANS, 'layer_cosine', 'busiest_std', 'busiest_id')}
    predicted = theory[tuple(fields.values())]
    again = on_others([row['again_LR'] for row in group]) if 'again_LR' in group[0] else {}
    mean_L, name = (again['again'], 'again') if again else (of['busiest'].mean(axis=0), 'busiest')
    off_L = predicted[f'theory_{name}'] / mean_L - 1
    shortest = first.setdefault((fields['config'], fields['num_experts']), of['busiest_id'])
    same = shortest.shape == of['busiest_id'].shape and shortest is not of['busiest_id']
    summary.append(fields | {'networks': len(group)} | {
        name: of[name].mean(axis=0) for name in (*MEANS, 'layer_cosine')} | predicted | again | {
            'busiest_ci95': [ci95(own) for own in of['busiest'].T],
            # Over routers and networks.
            'busiest_std': np.sqrt((of['busiest_std']**2).mean(axis=0) + of['busiest'].var(axis=0)),
            'largest_deviation': off_L[np.abs(off_L).argmax()]})
    if same:
      summary[-1]['same_as_at_shortest'] = (shortest == of['busiest_id']).mean()
  return summary


def on_others(again_SLR):
  """The load of experts that other tokens chose: means by layer, quantiles of the last one."""
  again_SLR = np.array(again_SLR)
  return {'again': again_SLR.mean(axis=(0, 2)),
          'again_ci95': [ci95(own_SR.mean(axis=1)) for own_SR in np.moveaxis(again_SLR, 1, 0)],
          **quantiles(again_SLR[:, -1].ravel(), 'again')}


def display(row):
  return {
      'model': row['config'], 'T': row['length'], 'experts': row['num_experts'],
      'uniform': f'{1 / row["num_experts"]:.1%}',
      'highest load, last layer': f'{row["busiest"][-1]:.1%} ± {row["busiest_ci95"][-1]:.1%}',
      'theory': f'{row["theory_busiest"][-1]:.1%}',
      'on others (theory)': (f'{row["again"][-1]:.1%} ± {row["again_ci95"][-1]:.1%} '
                             f'({row["theory_again"][-1]:.1%})' if 'again' in row else None),
      'median (10–90 %)': median(row, 'again', '.1%'),
      'theory of median': median(row, 'theory_again', '.1%'),
      'lowest load': f'{row["idlest"][-1]:.2%}',
      'theory of lowest': f'{row["theory_idlest"][-1]:.2%}',
      'worst layer: theory off by': f'{row["largest_deviation"]:+.1%}',
      'std over routers': f'{row["busiest_std"][-1]:.1%}',
      'theory of std': f'{row["theory_busiest_std"][-1]:.1%}',
      'direction predicts it': f'{row["direction_agrees"][-1]:.0%}',
      'same as at the shortest T': (f'{row["same_as_at_shortest"]:.0%}'
                                    if 'same_as_at_shortest' in row else None),
  }


def draw(summary):
  """A panel per number of experts, a line per model: the highest load and theory, last layer."""
  counts = sorted({row['num_experts'] for row in summary})
  columns = min(2, len(counts))
  lines = max(sum(row['num_experts'] == count for row in summary) for count in counts)
  figure = plotting.figure(10, 0.6 + -(-len(counts) // columns) * (0.9 + 0.22 * lines))
  grid = figure.subplots(-(-len(counts) // columns), columns, squeeze=False)
  for ax, count in zip(grid.flat, counts, strict=False):
    draw_loads(ax, [row for row in summary if row['num_experts'] == count])
    ax.axvline(100 / count, color='grey', linestyle=':', label='equal loads')
    ax.set(title=f'{count} experts', xlabel='highest load in the last layer (%)', xlim=(0, None))
  figure.legend(*grid[0, 0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
  return figure


def draw_loads(ax, rows):
  """A line per model and length: the mean over networks, its 95 % interval, and theory."""
  several = len({row['length'] for row in rows}) > 1
  for place, row in enumerate(rows):
    name = 'again' if 'again' in row else 'busiest'  # Older runs have not split their tokens.
    measured, error, expected = (100 * row[each][-1] for each in (
        name, f'{name}_ci95', f'theory_{name}'))
    labels = ('measured, 95 % interval', 'theory') if place == 0 else (None, None)
    ax.errorbar(measured, place, xerr=error, fmt='o', markersize=4, color=plotting.COLORS[0],
                label=labels[0])
    ax.plot(expected, place, 'k|', markersize=11, zorder=3, label=labels[1])
  ax.set_yticks(range(len(rows)), [
      words_of(row['config']) + (f', T = {row["length"]}' if several else '') for row in rows])
  ax.invert_yaxis()


def words_of(name: str) -> str:
  """A model in words: its preset, and what differs from it."""
  preset, *fields = name.split(',')
  said = (WORDS.get((parts := field.split('='))[0], '').format(parts[1]) for field in fields)
  return ', '.join([preset, *filter(None, said)])


if __name__ == '__main__':
  program.measure(main, 'experts', Settings, __doc__)
