"""Are experts born unequal? How many tokens random routers send to each of them.

A router reads states that contraction has made alike, so that most tokens agree on an expert, which
the seed fixes. Routers with as many experts as --num_experts says are drawn to read the states of
random networks, behind the norm of each MLP; a --config that has experts is read by its own. The
share of the busiest and of the idlest expert is compared with theory.expert_shares at every layer,
and the busiest one with that which the mean direction of all states predicts. No number is fitted.
Chosen and counted on the same tokens, it has their luck too; 'on others', it is chosen on one half
of the sequences and counted on the other. A network has the same routers at every length.

    python -m experiments.experts                       # 15 min on two CPU cores
    python -m experiments.experts --config=tiny_gpt2,num_experts=16,experts_per_token=2

Prints a table with a line per model, length and number of experts. Writes results.json (a row per
network) and figure.png.
"""

import dataclasses

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
from .shared.results import Results
from .shared.settings import setting
from .shared.tables import ci95, grouped, median, quantiles

# Routers that are drawn for each layer of a network without experts.
NUM_ROUTERS = 16
MEANS = 'busiest', 'idlest', 'direction_agrees'


@dataclasses.dataclass(frozen=True)
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


def main(settings, output_dir):
  found = cells(settings)
  results = Results(output_dir, 'experts', settings)
  measure_cells(found, settings, results)
  summary = results.summary or summarize(results.rows, predict(found, theory_of))
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
                                   readout=shares(cell.network.config, cell.probe, count)))
  return found


def shares(config: ModelConfig, probe: Probe, num_experts: int):
  """The busiest and the idlest expert of each router, as a readout of `ensemble.measure`."""
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
  reads = cell.network.config, cell.probe.length, cell.probe
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
      'busiest, last layer': f'{row["busiest"][-1]:.1%} ± {row["busiest_ci95"][-1]:.1%}',
      'theory': f'{row["theory_busiest"][-1]:.1%}',
      'on others (theory)': (f'{row["again"][-1]:.1%} ± {row["again_ci95"][-1]:.1%} '
                             f'({row["theory_again"][-1]:.1%})' if 'again' in row else None),
      'median (10–90 %)': median(row, 'again', '.1%'),
      'theory of median': median(row, 'theory_again', '.1%'),
      'idlest': f'{row["idlest"][-1]:.2%}', 'theory of idlest': f'{row["theory_idlest"][-1]:.2%}',
      'worst layer: theory off by': f'{row["largest_deviation"]:+.1%}',
      'std over routers': f'{row["busiest_std"][-1]:.1%}',
      'theory of std': f'{row["theory_busiest_std"][-1]:.1%}',
      'direction predicts it': f'{row["direction_agrees"][-1]:.0%}',
      'same as at the shortest T': (f'{row["same_as_at_shortest"]:.0%}'
                                    if 'same_as_at_shortest' in row else None),
  }


def draw(summary):
  """A panel per number of experts: the busiest expert's share by layer, with theory dashed."""
  counts = sorted({row['num_experts'] for row in summary})
  columns = min(2, len(counts))
  figure = plotting.figure(9, 3 * -(-len(counts) // columns) + 0.8)
  lines = list(dict.fromkeys((row['config'], row['length']) for row in summary))
  several = len({length for _, length in lines}) > 1
  for ax, count in zip(figure.subplots(-(-len(counts) // columns), columns, squeeze=False).flat,
                       counts, strict=False):
    for row in (row for row in summary if row['num_experts'] == count):
      line, layer = (row['config'], row['length']), np.arange(1, len(row['busiest']) + 1)
      name = 'again' if 'again' in row else 'busiest'  # Older runs have not split their tokens.
      measured, error, expected = (100 * np.array(row[each]) for each in (
          name, f'{name}_ci95', f'theory_{name}'))
      again, place = divmod(lines.index(line), len(plotting.COLORS))
      ax.errorbar(layer, measured, error, marker='os^v'[again % 4], markersize=3, linewidth=1,
                  color=plotting.COLORS[place],
                  label=row['config'] + (f', T = {row["length"]}' if several else ''))
      plotting.theory(ax, layer, expected, 'theory')
    ax.axhline(100 / count, color='grey', linestyle=':', label='all alike')
    ax.set(title=f'{count} experts', xlabel='layer', ylim=(0, None),
           ylabel='share of the busiest (%)')
    ax.xaxis.get_major_locator().set_params(integer=True)
  labels = {label: mark for ax in figure.axes
            for mark, label in zip(*ax.get_legend_handles_labels(), strict=True)}
  figure.legend(labels.values(), labels, loc='outside lower center', ncols=2, fontsize='x-small')
  return figure


if __name__ == '__main__':
  program.run(main, 'experts', Settings, __doc__)
