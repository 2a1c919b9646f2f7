"""Trains networks of known lineage: on English, then some of them on Python.

    python -m experiments.training_study \\
        --english=english_train.jsonl.xz --english_valid=english_valid.jsonl.xz \\
        --python=python_train.jsonl.xz --python_valid=python_valid.jsonl.xz

The texts are given in the forms that experiments.pretrain takes. At --scale=laptop two CPU cores
take about 20 minutes. If a run was stopped, the same command continues it.

Writes what persistence, seedprint_tables, baselines, robustness and lineage read:
OUTPUT_DIR/english/seed_SEED and OUTPUT_DIR/python/seed_SEED, each with the checkpoints of chosen
steps, step 0 included. The texts are tokenized once, to OUTPUT_DIR/corpora. results.json and
figure.png have the losses.
"""

from pathlib import Path
from types import SimpleNamespace

from bornbiased_jax.data import corpus, load_tokenizer, text
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import local
from bornbiased_jax.training import monitor

from .shared import command_line, runs, training_settings
from .shared.command_line import Setting, flagged
from .shared.parsing import listed, seed_range, whole
from .shared.results import make_directory
from .shared.runs import display  # noqa: F401  # experiments.pages makes tables with it.

TEXTS = {
    'english': 'English text to train on', 'english_valid': 'English text to evaluate on',
    'python': 'Python source to go on with', 'python_valid': 'Python source to evaluate on',
}
SHARED = ('config', 'tokenizer', 'data_seed', 'batch_size', 'length', 'accumulation', 'dtype',
          'remat')
SETTINGS = training_settings.SETTINGS | {
    **{name: Setting(str, what, hint=training_settings.A_TEXT) for name, what in TEXTS.items()},
    'continued': Setting(listed(seed_range), 'those of --seeds that go on with Python'),
    'python_steps': Setting(whole, 'optimizer steps on Python'),
    'python_keep_steps': Setting(training_settings.SETTINGS['keep_steps'].parse,
                                 'steps on Python whose checkpoints are kept; the first and the '
                                 'last always are'),
}

_LAPTOP = dict(
    english=None, english_valid=None, python=None, python_valid=None, config='tiny_llama2',
    seeds=list(range(42, 62)), continued=[42, 43], tokenizer='bytes', num_steps=1000,
    keep_steps=[10, 30, 100, 300], python_steps=500, python_keep_steps=[100], batch_size=8,
    length=64, accumulation=1, dtype='float32', remat='none', data_seed=42)
SCALES = {
    'smoke': _LAPTOP | dict.fromkeys(TEXTS, 'tinyshakespeare') | dict(
        seeds=[42, 43, 44], continued=[42], num_steps=6, keep_steps=[3], python_steps=4,
        python_keep_steps=[2], batch_size=4, length=32),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(
        config='nano_llama2', seeds=[42, 123, 1000, 2000], continued=[42, 123, 1000, 2000],
        num_steps=200_000, keep_steps=[100, 1000, 10_000, 50_000, 100_000, 150_000],
        python_steps=10_000, python_keep_steps=[1000], batch_size=128, length=2048,
        dtype='bfloat16'),
}


def main(settings: SimpleNamespace, output_dir: Path) -> None:
  phases = {'english': on_english(settings, output_dir), 'python': on_python(settings, output_dir)}
  check(settings, phases)
  tokenizer = flagged('tokenizer', load_tokenizer, settings.tokenizer)
  for name in TEXTS:
    flagged(name, text.sources, [getattr(settings, name)])
  flagged('output_dir', local, output_dir)
  make_directory(output_dir)
  trainings = [(training, output_dir / phase) for phase, training in phases.items()]
  with runs.recording('training_study', vars(settings), output_dir,
                      all(runs.is_trained(*training) for training in trainings),
                      any(runs.is_begun(*training) for training in trainings)) as record:
    for name in TEXTS:
      corpus.write([getattr(settings, name)], tokenizer, folder_of(output_dir, name))
    for training in trainings:
      runs.train(*training)
  report(settings, output_dir, record())


def on_english(settings: SimpleNamespace, output_dir: Path) -> SimpleNamespace:
  """Settings of the training from scratch."""
  return training_settings.of_study(
      settings, (*SHARED, 'seeds', 'num_steps', 'keep_steps'), settings.scale,
      data=str(folder_of(output_dir, 'english')), valid=str(folder_of(output_dir, 'english_valid')),
      warmup_steps=training_settings.warmup_of(settings.scale, settings.num_steps))


def on_python(settings: SimpleNamespace, output_dir: Path) -> SimpleNamespace:
  """Settings of the training that begins with the networks trained on English."""
  return training_settings.of_study(
      settings, SHARED, 'continue', init_from=str(output_dir / 'english'),
      data=str(folder_of(output_dir, 'python')), valid=str(folder_of(output_dir, 'python_valid')),
      seeds=settings.continued, num_steps=settings.python_steps,
      keep_steps=settings.python_keep_steps,
      warmup_steps=training_settings.warmup_of('continue', settings.python_steps))


def folder_of(output_dir: Path, name: str) -> Path:
  """Where the ids of a text are kept."""
  return output_dir / 'corpora' / name


def check(settings: SimpleNamespace, phases: dict[str, SimpleNamespace]) -> None:
  """Raises InputError for what would otherwise fail after an hour."""
  for seed in settings.continued:
    if seed not in settings.seeds:
      raise InputError(f'--continued: {seed} is not one of --seeds='
                       f'{",".join(map(str, settings.seeds))}')
  training_settings.check_keep_steps(settings, 'python_keep_steps', 'python_steps')
  for training in phases.values():
    training_settings.check(training)


def report(settings: SimpleNamespace, output_dir: Path, run: dict | None) -> None:
  """Writes the losses of both phases."""
  metrics = {phase: {seed: monitor.read(output_dir / phase / f'seed_{seed}') for seed in seeds}
             for phase, seeds in (('english', settings.seeds), ('python', settings.continued))}
  summary = [{'text': phase} | runs.summarize(seed, lines)
             for phase, of_seed in metrics.items() for seed, lines in of_seed.items()]
  panels = {title: metrics[phase]
            for phase, title in (('english', 'English'), ('python', 'then Python source'))}
  runs.write('training_study', vars(settings), output_dir, summary,
             runs.figure(panels, runs.unit_of(settings)), run)


if __name__ == '__main__':
  command_line.run(main, 'training_study', SCALES, __doc__, SETTINGS)
