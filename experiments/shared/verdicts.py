"""What is said with verdicts: before, how long they take; after, a report and its HTML page.

The page can be sent to others without anything else.
"""

from collections import Counter
from collections.abc import Callable
import math
from pathlib import Path
import sys
from typing import Any

from bornbiased_jax import hosts, plotting
from bornbiased_jax.analysis import Probe
from bornbiased_jax.analysis.statistics import p_value_text
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import plain
from bornbiased_jax.files import write_atomically
from bornbiased_jax.lineage import Signature, thresholds
from bornbiased_jax.lineage.comparison.every_test import TESTS
from bornbiased_jax.lineage.evidence.by_weights import Weights
from bornbiased_jax.lineage.sentences import p_text
from bornbiased_jax.models import flops
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import Model

from . import figures
from .results import write_json

# What a verdict says of a model and one or several others.
ANSWERS = {
    'identical': '{} holds the same numbers as {}.',
    'related': '{} has a common origin with {}.',
    'unrelated': 'No common origin of {} with {} was found.',
    'inconclusive': 'Whether {} has a common origin with {} is not shown.'}
_LONGEST = 31  # Letters of a label, so that a line of a table has 100.
# Of several pairs the first verdict here that is among them counts.
EXIT_CODES = {'related': 0, 'inconclusive': 3, 'unrelated': 5}
# A comparison takes some decompositions of width x width matrices, and what does not depend on it.
_PAIR_FLOPS_PER_CUBE, _PAIR_SECONDS = 3600, 1
# Reading and hashing parameters, seconds per byte.
_SECONDS_PER_BYTE = 2e-9
_LARGE = (10**12, ' trillion'), (10**9, ' billion'), (10**6, ' million')


def render(facts: dict, png: bytes) -> str:
  """The page of one pair or of many; names in it are escaped.

  `facts` is JSON: answers, each a verdict and a sentence; summary, sentences; networks, each with
  label, name, type, parameters and digest; pairs, each with what `verdict.compare` reports, the
  labels of both as base and suspect, and their names; matrix, a label and cells per line, or
  empty; left_out, each with name and reason; of many pairs the level `alpha` and `rate` of their
  correction; and settings, environment and run of the results.
  """
  return figures.template('verdict.html').render(
      facts, png=png, kinds=TESTS, thresholds=thresholds, verdicts=EXIT_CODES,
      p_text=lambda p_value: p_text(math.log10(p_value)), p_of_test=p_of_test)


def labels(about: list[dict]) -> list[str]:
  """What each model is called: the last parts of its name, as many as no other name has.

  An adapter is called by its base too, and what is too long loses its middle.
  """
  parts = [[Path(_letters(part['name'])).parts or ('.',) for part in (
      (each['base'], each['adapter']) if 'adapter' in each else (each,))] for each in about]
  ends = [[' + '.join('/'.join(name[-count:]) for name in own)
           for count in range(1, max(map(len, own)) + 1)] for own in parts]
  seen = Counter(end for own in ends for end in set(own))
  found = [next((end for end in own if seen[end] == 1), own[-1]) for own in ends]
  half = _LONGEST // 2
  short = [f'{each[:half]}…{each[-half:]}' if len(each) > _LONGEST else each for each in found]
  return [f'{each} (#{i})' if short.count(each) > 1 else each for i, each in enumerate(short, 1)]


def _letters(name):
  """A name as it is shown; one that is not UTF-8 with its bytes as numbers."""
  return plain(name.encode(errors='backslashreplace').decode())


def write(report: dict, folder: Path, text: Callable[[dict], str], draw: Callable[[], Any],
          page: Callable[[bytes], str], *others: str) -> None:
  """Writes results.json, a figure and report.html, and prints the report and what was written.

  It is printed as a text or, with --json, as results.json has it. `page` makes the page from the
  figure as a PNG file, and `others` are files that were written before.
  """
  write_json(folder / 'results.json', report)
  is_json = report['settings'].get('json', False)
  if hosts.is_first():
    print((folder / 'results.json').read_text() if is_json else text(report))
  with plotting.style():
    drawn = draw()
  figure = folder / f'figure.{figures.FORMAT.get()}'
  # Encoded, never read back: only the first of several processes writes.
  png = plotting.encode(drawn, 'png')
  write_atomically(figure, png if figure.suffix == '.png'
                   else plotting.encode(drawn, figure.suffix[1:]))
  # A name that is not UTF-8 is shown with its bytes as numbers.
  write_atomically(folder / 'report.html', page(png).encode(errors='backslashreplace'))
  names = ', '.join([f'{folder}/results.json', *others, figure.name])
  print(f'wrote {names} and report.html', file=sys.stderr if is_json else sys.stdout)


def p_of_test(row: dict) -> str:
  """The p-value of a test for readers, with ≤ where it is an upper bound.

  So are those of tests that decide: no more than permutations can give, and corrected upward.
  """
  log10_p = math.log10(row['p_value'])
  is_bound = row['decides'] or log10_p <= thresholds.LEAST_LOG10_P
  return p_text(log10_p) if is_bound else p_value_text(log10_p)


def describe_network(network: Model | Signature) -> dict:
  """Type and size of a model; of one that was read by names, what its weights say."""
  about, config = network.about, network.config
  if 'model_type' not in about:
    return describe(config)
  assert isinstance(network, (Weights, Signature))
  return {'type': f'{about["model_type"]}, {config.num_layers} layers of width {config.width:,}, '
                  f'{config.vocab_size:,} token ids, read {about["read"]}',
          'parameters': network.num_parameters}


def describe(config: ModelConfig) -> dict:
  """Type and size of a model with this configuration."""
  mlp = f'{"gated " if config.gated_mlp else ""}{config.activation} MLP'
  norm = {'layernorm': 'LayerNorm', 'rmsnorm': 'RMSNorm'}[config.norm]
  positions = {'rope': 'RoPE', 'learned': 'learned positions', 'alibi': 'ALiBi',
               'none': 'no positions'}[config.positions]
  return {'type': f'{config.num_layers} layers of width {config.width:,}, {norm}, {mlp}, '
                  f'{positions}, {config.vocab_size:,} token ids',
          'parameters': num_parameters(config)}


def chance(p_value: float) -> str:
  """A p-value in words.

  >>> chance(1e-12)
  'If only chance orders their parts, at most one in 1 trillion unrelated pairs agrees as much. \
This is not the probability that these two are unrelated.'
  """
  count = math.floor(1 / p_value + 1e-6)
  size, name = next((each for each in _LARGE if count >= each[0]), (1, ''))
  return (f'If only chance orders their parts, at most one in {count // size:,}{name} unrelated '
          'pairs agrees as much. This is not the probability that these two are unrelated.')


def size_of(model: Model) -> int:
  """The number of parameters of a model."""
  return model.num_parameters if isinstance(model, Weights) else num_parameters(model.config)


def reading_seconds(model: Model, probe: Probe, rate: float) -> float:
  """About how long a model is read, at so many FLOPs per second; of weights, without a probe."""
  forward = 0 if isinstance(model, Weights) else (
      probe.num_sequences * flops.forward_flops(model.config, probe.length, 0))
  return forward / rate + 4 * _SECONDS_PER_BYTE * size_of(model)


def pair_seconds(base: ModelConfig, suspect: ModelConfig, rate: float) -> float:
  """About how long two signatures are compared."""
  return _PAIR_SECONDS + _PAIR_FLOPS_PER_CUBE * max(base.width, suspect.width)**3 / rate


def tell(reads: list[tuple[Model, list[Probe]]],
         pairs: list[tuple[ModelConfig, ModelConfig]]) -> None:
  """Says what each model reads, what is compared, and how long that takes at the rate of now."""
  if not hosts.is_first():
    return
  rate = flops.matmul_rate('float32', rounds=1)
  seconds = (sum(reading_seconds(model, probe, rate) for model, own in reads for probe in own)
             + sum(pair_seconds(*pair, rate) for pair in pairs))
  parameters = sum(size_of(model) for model, _ in reads)
  minutes = f'{max(1, seconds / 60):,.0f} min'
  print(f'{counted(len(reads), "model")} to read, {parameters / 1e6:,.1f} M parameters, and '
        f'{counted(len(pairs), "pair")} to compare: about {minutes} at the {rate / 1e9:,.0f} '
        'GFLOP/s that this machine has now; less if an earlier run has read them', file=sys.stderr)


def counted(number: int, noun: str) -> str:
  """
  >>> counted(1, 'pair'), counted(1200, 'pair')
  ('1 pair', '1,200 pairs')
  """
  return f'{number:,} {noun}{"" if number == 1 else "s"}'
