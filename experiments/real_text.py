"""On real text the bias at initialization is stronger, and the text says how much.

Random networks read windows of texts, by bytes and by subwords, and random tokens. After each layer
the cosine of two windows is compared with theory.finite_width, which knows only which tokens of the
windows coincide, with its limit of infinite width (theory.infinite_width), and with a theory that
knows only the probability that two tokens are the same. Nothing is fitted. Two controls are
shuffled tokens, and windows whose last token is random. The preferred token is compared with the
commonest token, and with the token that the mean embedding Σ p_v e_v predicts.

    python -m experiments.real_text --texts=tinyshakespeare,my.txt --tokenizers=bytes,my.model
    python -m experiments.real_text --config=nano_gpt2,nano_llama2 --lengths=64 --seeds=0-3

Prints a table with a line per model, text and length. Writes results.json (a row per network) and
figure.png to the output folder. If a run was stopped, the same command continues it.
"""

from collections.abc import Sequence
import functools
import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs, plotting
from bornbiased_jax.analysis import Probe, theory
from bornbiased_jax.data import Corpus
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import listed, whole
from bornbiased_jax.models.transformer import head_of, unembed

from .shared import measurements, program, tables
from .shared.base_settings import Transformers, load_corpus
from .shared.measurements import measure_cells, predict, transformer_cell
from .shared.settings import name_flag, setting, some
from .shared.tables import described, grouped, plus_minus

READS = ('text', 'shuffled', 'last random', 'uniform')
FIELDS = ('config', 'length', 'text', 'tokenizer', 'reads')


class Settings(Transformers):
  config: list[str] = setting(['tiny_gpt2', 'tiny_llama2'], smoke=['tiny_llama2'],
                              paper=['nano_gpt2', 'nano_llama2'])
  seeds: list[int] = setting(range(20), smoke=range(3))
  num_sequences: int = setting(100, smoke=40, paper=1000)
  lengths: list[int] = setting([16, 64, 256], smoke=[8])
  texts: list[str] = setting(['tinyshakespeare'], listed(str),
                             'text files, comma-separated; one is in the package')
  tokenizers: list[str] = setting(['bytes'], listed(str), 'tokenizers, as --tokenizer elsewhere')
  reads: list[str] = setting(list(READS), *some(READS, 'inputs to read'), smoke=['text', 'uniform'])
  control_length: int = setting(64, whole, 'tokens of shuffled windows and of those whose last is '
                                'random', smoke=8)


class LastRandom(Probe):
  """A probe whose last ids are uniform over the vocabulary."""

  def inputs(self, config, index_B, network_seed=0):
    last = Probe('tokens', self.num_sequences, 1, self.seed, of_each=self.of_each)
    last_B1 = last.inputs(config, index_B, network_seed)
    return super().inputs(config, index_B, network_seed).at[:, -1:].set(last_B1)


def main(settings, results):
  if settings.data or settings.tokenizer != 'bytes' or settings.probe != 'tokens':
    raise InputError('--data, --tokenizer, --probe: use --texts, --tokenizers and --reads instead')
  cells = list(cells_of(settings))
  measure_cells(cells, settings, results)
  predicted = {} if results.summary else predict(cells, theory_of)
  results.finish(results.summary or summarize(results.rows, predicted), display,
                 lambda: draw(results.summary))


def cells_of(settings):
  """A cell for each model, length and text, and for random tokens."""
  texts = list(itertools.product(settings.texts, settings.tokenizers))
  shown = {each: short(each, of) for of in (settings.texts, settings.tokenizers) for each in of}
  for name, length, reads in itertools.product(settings.config, settings.lengths, settings.reads):
    if reads in ('text', 'uniform') or length == settings.control_length:
      for spec, tokenizer in [('–', '–')] if reads == 'uniform' else texts:
        text = None if reads == 'uniform' else load_corpus(spec, tokenizer, 'texts', 'tokenizers')
        yield cell_of(settings, name, length, reads, text, shown.get(spec, spec),
                      shown.get(tokenizer, tokenizer))


def cell_of(settings, name, length, reads, text, spec, tokenizer):
  kind = {'text': 'text', 'shuffled': 'shuffled', 'last random': 'text', 'uniform': 'tokens'}[reads]
  make = functools.partial(LastRandom if reads == 'last random' else Probe, text=text)
  probe = name_flag('texts', make, kind, settings.num_sequences, length, settings.probe_seed)
  vocab_size = max(configs.get(name).vocab_size, text.vocab_size if text else 0)
  cell = transformer_cell(name, length, settings, measurements.preference, row_of(text),
                          lambda config: mean_token(config, text), probe=probe,
                          vocab_size=vocab_size)
  values = (name, length, spec, tokenizer, reads)
  return cell._replace(fields=dict(zip(FIELDS, values, strict=True)))


def short(name: str, names: Sequence[str] = ()) -> str:
  """A text or tokenizer in a table: the name of its file, up to the first dot.

  It is the whole name if another one of `names` has the same.

  >>> short('a/x.txt', ['a/x.txt', 'y.txt']), short('a/x.txt', ['a/x.txt', 'b/x.txt'])
  ('x', 'a/x.txt')
  """
  of_file = lambda each: Path(each).name.partition('.')[0]
  return name if sum(of_file(each) == of_file(name) for each in names) > 1 else of_file(name)


def mean_token(config: configs.ModelConfig, text: Corpus | None):
  """The readout of the token that the mean embedding of a text predicts."""
  if text is None:
    return lambda params, sums: {}
  share_V = jnp.asarray(shares(text, config.vocab_size), jnp.float32)

  def readout(params, sums):
    mean_D = share_V @ params['embedding']
    return {'mean_id': jnp.argmax(unembed(config, head_of(config, params), mean_D))}

  return readout


def shares(text: Corpus, vocab_size: int) -> np.ndarray:
  """How often each id is met in a text, [V]."""
  return np.bincount(text.tokens, minlength=vocab_size) / text.tokens.size


def row_of(text):
  """The function to the row of a network, with what is commonest in the text."""

  def row(measured):
    preferred = measured['preference']['top1_id']
    found = {'layer_cosine': measured['layers']['cosine'], 'top1_id': preferred,
             'top1_frequency': measured['preference']['top1_frequency'],
             'direction_std': measured['direction']['direction_std']}
    share_V = np.zeros(0) if text is None else shares(text, preferred + 1)
    return found if text is None else found | {
        'is_mean': preferred == int(measured['mean_id']),
        'is_commonest': preferred == int(share_V.argmax()), 'text_share': share_V[preferred]}

  return row


def theory_of(cell) -> dict:
  """Theory of a cell: cosines by layer, and the last one by simpler theory."""
  text, config, length = cell.probe.text, cell.ensemble.config, cell.probe.length
  finite, reads = measurements.predicted_similarity(cell), measurements.read(cell.probe)
  limit = lambda *probe, **how: measurements.unless_unknown(lambda: float(
      theory.infinite_width(config, length, *probe, **how).inter_cosine_L[-1]), np.nan)
  found = {'law_L': np.asarray(finite.inter_cosine_L), 'infinite_width': limit(reads),
           'theory_direction_std': finite.direction_std,
           **measurements.preferred_tokens(config, cell.probe.num_sequences, probe=reads)}
  if text is None:
    return found
  q = float(np.sum(shares(text, config.vocab_size) ** 2))
  return found | {'tokens_alike': 1 / q, 'digest': text.digest, 'one_number': limit(collision=q)}


def summarize(rows, predicted):
  summary = []
  for fields, group in grouped(rows, *FIELDS):
    expected = predicted[tuple(fields.values())]
    cosine = described([row['layer_cosine'][-1] for row in group], 'cosine')
    of_text = {name: float(np.mean([row[name] for row in group]))
               for name in ('is_mean', 'is_commonest', 'text_share') if name in group[0]}
    summary.append(fields | {
        'networks': len(group), **cosine, **expected, **tables.top1_summary(group),
        **of_text,
        'layer_cosine': np.mean([row['layer_cosine'] for row in group], axis=0),
        'error': cosine['cosine'] - expected['law_L'][-1],
        'relative_deviation': float(expected['law_L'][-1] / cosine['cosine'] - 1)})
  return summary


def display(row):
  is_text = 'is_mean' in row
  return {
      'model': row['config'], 'text': row['text'], 'tokens': row['tokenizer'],
      '1/q': f'{row["tokens_alike"]:.0f}' if is_text else '–', 'T': str(row['length']),
      'reads': row['reads'], 'cosine': plus_minus(row, 'cosine', '.3f'),
      'theory': f'{row["law_L"][-1]:.3f}', 'off by': f'{row["relative_deviation"]:+.1%}',
      'infinite width': f'{row["infinite_width"]:.3f}',
      'one number': f'{row["one_number"]:.3f}' if is_text else '–',
      'preferred token': plus_minus(row, 'top1_frequency', '.1%'), **tables.top1_columns(row),
      'is that of Σ p e': f'{row["is_mean"]:.0%}' if is_text else '–',
      'is commonest': f'{row["is_commonest"]:.0%}' if is_text else '–',
  }


def draw(summary):
  """Left: cosine by layer. Middle: last layers against theory. Right: preferred tokens."""
  figure = plotting.figure(10, 3.4)
  layers, against, shares_ax = figure.subplots(1, 3)
  for color, (_, rows) in zip(plotting.COLORS, grouped(summary, 'config'), strict=False):
    draw_layers(layers, rows, color)
    shares_ax.plot([], [], color=color, label=rows[0]['config'])
    for fields, own in grouped(rows, 'reads'):
      cosine, marker = [row['cosine'] for row in own], look(color, fields['reads'])
      against.errorbar([row['law_L'][-1] for row in own], cosine,
                       [row['cosine_ci95'] for row in own], elinewidth=0.8, **marker)
      shares_ax.plot(cosine, [100 * row['top1_frequency'] for row in own], **marker)
  layers.legend(fontsize='x-small')
  against.axline((0, 0), slope=1, color='black', linestyle='--', linewidth=1)
  against.set(xlabel='theory', ylabel='measured', title='last layer, all texts and lengths',
              xlim=(0, None), ylim=(0, None))
  for fields, _ in grouped(summary, 'reads'):
    shares_ax.plot([], [], label=fields['reads'], **look('gray', fields['reads']))
  shares_ax.set(xlabel='cosine, last layer', ylabel='share of windows (%)', ylim=(0, None),
                 title='the preferred token')
  shares_ax.legend(fontsize='x-small')
  return figure


def look(color, reads):
  """How points are drawn; points of random tokens are hollow."""
  return dict(marker=dict(zip(READS, 'o^vs', strict=True))[reads], linestyle='', markersize=4,
              color=color, markerfacecolor='white' if reads == 'uniform' else color)


def draw_layers(ax, rows, color):
  """The first text and random tokens, layer by layer, at one length."""
  length = min((row['length'] for row in rows), key=lambda length: abs(length - 64))
  for reads, shown in grouped([row for row in rows if row['length'] == length], 'reads'):
    if (reads := reads['reads']) in ('text', 'uniform'):
      x = np.arange(1, 1 + len(shown[0]['layer_cosine']))
      ax.plot(x, shown[0]['layer_cosine'], label=f'{rows[0]["config"]}, {reads}',
              **look(color, reads) | dict(linestyle='-', linewidth=1))
      plotting.theory(ax, x, shown[0]['law_L'])
  ax.set(xlabel='layer', ylabel='cosine of two windows', ylim=(0, None),
         title=f'{rows[0]["text"]}, {rows[0]["tokenizer"]}, T = {length}')
  ax.xaxis.get_major_locator().set_params(integer=True)


if __name__ == '__main__':
  program.measure(main, 'real_text', Settings, __doc__, several_hosts=True)
