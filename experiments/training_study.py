"""Checkpoints of known lineage: networks trained on English in one order, then some of them on Python.

    python -m experiments.training_study --english=english_train.jsonl.xz --english_valid=english_valid.jsonl.xz \\
        --python=python_train.jsonl.xz --python_valid=python_valid.jsonl.xz

What the fingerprint study (persistence, seedprint, lineage) reads:
OUTPUT_DIR/english/seed_SEED and OUTPUT_DIR/python/seed_SEED, each with the
checkpoints of chosen steps, step 0 included. Texts are tokenized once to
OUTPUT_DIR/corpora. Two CPU cores take about an hour and a half at
--scale=laptop; started again, the command goes on where it was.
"""

from pathlib import Path
from types import SimpleNamespace

from bornbiased_jax import plotting
from bornbiased_jax.data import corpus, text, tokenizers
from bornbiased_jax.errors import InputError
from bornbiased_jax.training import monitor
from experiments import command_line, pretrain
from experiments.command_line import flagged
from experiments.results import make_directory

TEXTS = {'english': 'English text to train on', 'english_valid': 'English text to evaluate on',
         'python': 'Python source to go on with', 'python_valid': 'Python source to evaluate on'}
SHARED = ('config', 'tokenizer', 'data_seed', 'batch_size', 'length', 'accumulation', 'dtype', 'remat')

STUDY_KINDS = pretrain.TRAINING_KINDS | {
    **{name: (pretrain.A_TEXT, what) for name, what in TEXTS.items()},
    'continued': (command_line.listed(command_line.seed_range), 'those of --seeds that go on with Python'),
    'python_steps': (command_line.whole, 'optimizer steps on Python'),
    'python_keep_steps': (pretrain.TRAINING_KINDS['keep_steps'][0], 'as --keep_steps, of those on Python'),
}

_LAPTOP = dict(config='tiny_llama2', tokenizer='bytes', seeds='42-51', continued='42,43', data_seed='42',
               batch_size='16', length='128', accumulation='1', dtype='float32', remat='none', num_steps='1000',
               keep_steps='10,30,100,300', python_steps='500', python_keep_steps='100',
               english='none', english_valid='none', python='none', python_valid='none')
SCALES = {
    'smoke': _LAPTOP | dict(seeds='42-44', continued='42', batch_size='4', length='32', num_steps='6', keep_steps='3',
                            python_steps='4', python_keep_steps='2', **dict.fromkeys(TEXTS, 'tinyshakespeare')),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(config='nano_llama2', seeds='42,123,1000,2000', continued='42,123,1000,2000',
                            batch_size='128', length='2048', accumulation='1', dtype='bfloat16', num_steps='200000',
                            keep_steps='100,1000,10000,50000,100000,150000', python_steps='10000',
                            python_keep_steps='1000'),
}


def main(settings: SimpleNamespace, output_dir: Path) -> None:
  for seed in settings.continued:
    if seed not in settings.seeds:
      raise InputError(f'--continued: {seed} is not one of --seeds={",".join(map(str, settings.seeds))}')
  tokenizer = flagged('tokenizer', tokenizers.load, settings.tokenizer)
  for name in TEXTS:
    flagged(name, text.sources, [getattr(settings, name)])
  make_directory(output_dir)
  corpora = {name: tokenize(getattr(settings, name), tokenizer, output_dir / 'corpora' / name) for name in TEXTS}
  train(settings, output_dir / 'english', corpora['english'], corpora['english_valid'], settings.seeds,
        settings.num_steps, settings.keep_steps, base=settings.scale)
  train(settings, output_dir / 'python', corpora['python'], corpora['python_valid'], settings.continued,
        settings.python_steps, settings.python_keep_steps, base='continue', init_from=str(output_dir / 'english'))
  report(settings, output_dir)


def tokenize(source: str, tokenizer: tokenizers.Tokenizer, directory: Path) -> Path:
  corpus.write([source], tokenizer, directory)
  return directory


def train(settings, output_dir, data, valid, seeds, num_steps, keep_steps, base, **overrides) -> None:
  """Calls `pretrain` at its scale `base` with this study's settings."""
  warmup_steps = min(int(pretrain.SCALES[base]['warmup_steps']), num_steps // 3)
  pretrain.run_study(settings, SHARED, base, output_dir, data=data, valid=valid, num_steps=num_steps,
                     warmup_steps=warmup_steps, seeds=seeds, keep_steps=keep_steps, **overrides)


def report(settings: SimpleNamespace, output_dir: Path) -> None:
  metrics = {(phase, seed): monitor.read(output_dir / phase / f'seed_{seed}')
             for phase, seeds in (('english', settings.seeds), ('python', settings.continued)) for seed in seeds}
  summary = [{'text': phase} | pretrain.summarize(seed, lines) for (phase, seed), lines in metrics.items()]
  pretrain.write('training_study', settings, output_dir, summary, figure(metrics, settings))


def figure(metrics: dict[tuple[str, int], list[dict]], settings: SimpleNamespace):
  """Both phases, one after another, a colour a seed."""
  with plotting.style():
    drawn = plotting.figure(7, 3.4)
    for ax, phase in zip(drawn.subplots(1, 2, sharey=True), ('english', 'python'), strict=True):
      for (text, seed), lines in metrics.items():
        if text == phase:
          color = plotting.COLORS[settings.seeds.index(seed) % len(plotting.COLORS)]
          plotting.loss_curve(ax, lines, label=f'seed {seed}', color=color, linewidth=1)
      ax.set(xlabel='optimizer step', title={'english': 'English', 'python': 'then Python source'}[phase])
      ax.legend(ncols=2, fontsize='small')
    drawn.axes[0].set_ylabel('loss (nats a byte)' if settings.tokenizer == 'bytes' else 'loss (nats a token)')
  return drawn


if __name__ == '__main__':
  command_line.run(main, 'training_study', SCALES, __doc__, STUDY_KINDS)
