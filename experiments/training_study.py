"""Trains networks of known lineage: on English, then some of them on Python.

    python -m experiments.training_study \\
        --english=english_train.jsonl.xz --english_valid=english_valid.jsonl.xz \\
        --python=python_train.jsonl.xz --python_valid=python_valid.jsonl.xz

The texts are given in the forms that experiments.pretrain takes. At --scale=laptop two CPU cores
take about 11 minutes.

Writes what persistence, seedprint_tables, baselines, robustness and lineage read:
OUTPUT_DIR/english/seed_SEED and OUTPUT_DIR/python/seed_SEED, each with the checkpoints of chosen
steps, step 0 included. The texts are tokenized once, to OUTPUT_DIR/corpora. results.json and
figure.png have the losses.
"""

from pathlib import Path

from bornbiased_jax.data import corpus, load_tokenizer, text
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import SEEDS, listed, natural, optional, whole
from bornbiased_jax.files import local
from bornbiased_jax.training import monitor

from .shared import base_settings, program, runs
from .shared.base_settings import Computation, Training, until
from .shared.results import Results, make_directory
from .shared.runs import display
from .shared.settings import A_TEXT, name_flag, setting

TEXTS = 'english', 'english_valid', 'python', 'python_valid'


def a_text(what: str):
  return setting(None, str, what, A_TEXT, smoke='tinyshakespeare')


class Settings(Computation):
  english: str | None = a_text('English text to train on')
  english_valid: str | None = a_text('English text to evaluate on')
  python: str | None = a_text('Python source to go on with')
  python_valid: str | None = a_text('Python source to evaluate on')
  seeds: list[int] = setting(range(42, 62), smoke=[42, 43, 44], paper=[42, 123, 1000, 2000])
  continued: list[int] = setting([42, 43], SEEDS.parse, smoke=[42], help=(
      'those of --seeds that go on with Python'), paper=[42, 123, 1000, 2000])
  keep_steps: list[int] | None = setting([10, 30, 100, 300], smoke=[3],
                                         paper=[100, 1000, 10_000, 50_000,
                                                100_000, 150_000])
  python_steps: int = setting(500, whole, 'optimizer steps on Python', smoke=4, paper=10_000)
  python_keep_steps: list[int] | None = setting(
      [100], optional(listed(natural)), smoke=[2], paper=[1000], help=(
      'steps on Python whose checkpoints are kept; the first and the last always are'))
  batch_size: int = setting(8, smoke=4, paper=128)
  length: int = setting(64, smoke=32, paper=2048)

  FITTED = Computation.FITTED | {'python_keep_steps': until('python_steps')}


def main(settings: Settings, output_dir: Path) -> None:
  phases = {'english': on_english(settings, output_dir), 'python': on_python(settings, output_dir)}
  check(settings, phases)
  tokenizer = name_flag('tokenizer', load_tokenizer, settings.tokenizer)
  for name in TEXTS:
    name_flag(name, text.sources, [getattr(settings, name)])
  name_flag('output_dir', local, output_dir)
  make_directory(output_dir)
  trainings = [(training, output_dir / phase) for phase, training in phases.items()]
  results = runs.record(output_dir, 'training_study', settings, trainings,
                        (*TEXTS, 'tokenizer'))
  with results.noting_time():
    for name in TEXTS:
      corpus.write([getattr(settings, name)], tokenizer, folder_of(output_dir, name))
    for training in trainings:
      runs.train(*training)
  report(settings, output_dir, results)


def on_english(settings: Settings, output_dir: Path) -> Training:
  """Settings of the training from scratch."""
  return base_settings.of_study(
      settings, settings.scale,
      data=str(folder_of(output_dir, 'english')), valid=str(folder_of(output_dir, 'english_valid')))


def on_python(settings: Settings, output_dir: Path) -> Training:
  """Settings of the training that begins with the networks trained on English."""
  return base_settings.of_study(
      settings, 'continue', init_from=str(output_dir / 'english'),
      data=str(folder_of(output_dir, 'python')), valid=str(folder_of(output_dir, 'python_valid')),
      seeds=settings.continued, num_steps=settings.python_steps,
      keep_steps=settings.python_keep_steps)


def folder_of(output_dir: Path, name: str) -> Path:
  """Where the ids of a text are kept."""
  return output_dir / 'corpora' / name


def check(settings: Settings, phases: dict[str, Training]) -> None:
  """Raises InputError for what would otherwise fail after an hour."""
  for seed in settings.continued:
    if seed not in settings.seeds:
      raise InputError(f'--continued: {seed} is not one of --seeds='
                       f'{",".join(map(str, settings.seeds))}')
  base_settings.check_keep_steps(settings, 'python_keep_steps', 'python_steps')
  for training in phases.values():
    base_settings.check(training)


def report(settings: Settings, output_dir: Path, results: Results) -> None:
  """Writes the losses of both phases."""
  metrics = {phase: {seed: monitor.read(output_dir / phase / f'seed_{seed}') for seed in seeds}
             for phase, seeds in (('english', settings.seeds), ('python', settings.continued))}
  summary = [{'text': phase} | runs.summarize(seed, lines)
             for phase, of_seed in metrics.items() for seed, lines in of_seed.items()]
  panels = {title: metrics[phase]
            for phase, title in (('english', 'English'), ('python', 'then Python source'))}
  results.finish(summary, display, lambda: runs.figure(panels, runs.unit_of(settings)))


if __name__ == '__main__':
  program.run(main, 'training_study', Settings, __doc__)
