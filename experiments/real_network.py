"""Are the descendants of a model that others trained recognized?

    python -m experiments.real_network --network=stories260K --text=tinystories.txt \\
        --other_text=python.jsonl

A pretrained model, given as experiments.seedprint takes it, is compared with its descendants:
continued on its own text and, at a high rate, on another one; quantized; rotated; with fewer
residual channels. Models of its shape that were trained from scratch on its text are unrelated to
all of these and to each other. Every related and every unrelated pair is judged.

Texts are read in bytes. About 5 minutes on two CPU cores with a model of 260,000 parameters.

Writes results.json (a row per pair: the truth, the verdict, and z of every test) and figure.png.
"""

import functools
import itertools

import jax

from bornbiased_jax import lineage, plotting, storage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.fields import whole
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.every_test import DECIDING

from .shared import program
from .shared.base_settings import Inputs
from .shared.settings import name_flag, setting
from .small_networks.training import from_seeds, train
from .transforms import lossy, preserving, surgery

DESCENDANTS = ('continued on its text', 'continued on another text, high rate',
               'quantized to 4 bits', 'continued and rotated',
               'continued, a quarter of the channels cut')


class Settings(Inputs):
  network: str = setting('tiny_llama2:1', str,
                         'a pretrained model, as experiments.seedprint takes it')
  text: str = setting('tinyshakespeare', str,
                      'the text on which it was trained, as experiments.pretrain takes it')
  other_text: str = setting('tinyshakespeare', str, 'another text')
  steps: int = setting(6000, whole, 'steps of the models that are trained from scratch',
                       smoke=3, paper=20_000)
  seeds: list[int] = setting([1, 2, 3], smoke=[2, 3])
  num_sequences: int = setting(2000, smoke=1000)
  length: int = setting(16, smoke=4, paper=64)


def main(settings, results):
  unrelated = [f'from scratch, seed {seed}' for seed in settings.seeds]
  related = [('descendant', 'pretrained', name) for name in DESCENDANTS]
  others = [('unrelated', name, other) for name in ('pretrained', *DESCENDANTS)
            for other in unrelated]
  others += [('unrelated', *pair) for pair in itertools.combinations(unrelated, 2)]
  # Nothing is trained for rows that are all there.
  subjects = functools.cache(lambda: make_subjects(settings, results, unrelated))
  for row in results.missing(({'truth': truth, 'base': name, 'suspect': other}
                              for truth, name, other in [*related, *others]), 'pair'):
    results.add(row | measure(subjects()[row['base']], subjects()[row['suspect']]))
  results.finish(results.rows, display, lambda: draw(results.rows))


def make_subjects(settings, results, unrelated) -> dict[str, lineage.Subject]:
  """All models by name, each with what tests read of it."""
  base = name_flag('network', lambda: storage.open(settings.network).load())
  with results.noting_time():
    descendants = make_descendants(base, settings)
    scratch = train(base[0], from_seeds(base[0], settings.seeds), settings.steps,
                    source=settings.text)
  models = [base, *descendants, *((base[0], params) for params in scratch)]
  probe = Probe('tokens', settings.num_sequences, settings.length, settings.probe_seed)
  names = 'pretrained', *DESCENDANTS, *unrelated
  return {name: lineage.Subject(*model, probe)
          for name, model in zip(names, models, strict=True)}


def make_descendants(base, settings) -> list:
  """The models that DESCENDANTS names."""
  config, params = base
  steps = max(1, settings.steps // 10)
  tune = functools.partial(train, config, [params], data_seed=1)
  stories = config, tune(steps, source=settings.text, peak_lr=1e-3)[0]
  key = jax.random.key(0)
  return [stories, (config, tune(steps, source=settings.other_text, peak_lr=1e-2)[0]),
          lossy.quantize(config, params, key, 4), preserving.rotate_channels(*stories, key),
          surgery.cut_channels(*stories, key, 0.25)]


def measure(base, suspect) -> dict:
  report = lineage.judge(base, suspect)
  return {'verdict': report['verdict'], 'p_value': report['p_value'],
          'z': {row['test']: row['z'] for row in report['tests']},
          'statistic': {row['test']: row['statistic'] for row in report['tests']},
          'reason': {row['test']: row['reason'] for row in report['tests']}}


def display(row):
  shown = lambda z: '–' if z is None else f'{z:.1f}'
  return {'base': row['base'], 'suspect': row['suspect'], 'truth': row['truth'],
          'verdict': row['verdict'], **{name: shown(row['z'][name]) for name in DECIDING}}


def draw(rows):
  """z of every deciding test by pair; related pairs above, unrelated ones below."""
  figure = plotting.figure(10, 1.4 + 0.2 * len(rows))
  ax = figure.subplots()
  for name, marker in zip(DECIDING, 'osD^', strict=True):
    marks = [(row['z'][name], i) for i, row in enumerate(rows) if row['z'][name] is not None]
    ax.plot(*zip(*marks, strict=True), marker, markersize=4, label=name)
  ax.axvline(thresholds.related_z(len(DECIDING)), color='black', linestyle='--',
             linewidth=0.8, label='evidence beyond')
  ax.axhline(sum(row['truth'] == 'descendant' for row in rows) - 0.5, color='black',
             linewidth=0.8)
  plotting.z_axis(ax.xaxis, (-5, 0, 5, 50))
  ax.set_yticks(range(len(rows)), [f'{row["base"]} – {row["suspect"]}' for row in rows])
  ax.set(ylim=(len(rows) - 0.5, -0.5),
         title='Descendants above the line, unrelated pairs below')
  figure.legend(loc='outside upper center', ncols=3)
  return figure


if __name__ == '__main__':
  program.measure(main, 'real_network', Settings, __doc__)
