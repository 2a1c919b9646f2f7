"""Runs the programs of all figures and tables, and writes one page of results.

    python -m experiments.reproduce --scale=smoke     # what it does, as small as it gets
    python -m experiments.reproduce --english=english_train.jsonl.xz \\
        --english_valid=english_valid.jsonl.xz --python=python_train.jsonl.xz \\
        --python_valid=python_valid.jsonl.xz --wikitext=wikitext2_test.txt.xz
    python -m experiments.reproduce --only=fig1,table4

--scale=laptop, the default, takes some 70 minutes on two CPU cores: slow programs have fewer
networks or steps. --scale=overnight does not shorten them, and adds nano networks at the paper's n.
--scale=paper has the paper's networks, lengths and training runs, for accelerators. --scale=gpu has
what one GPU of 80 GB adds in an hour: sinks of 58 million parameters that read English, Table 1 and
the lineage of descendants at 1.2 billion, contraction at T = 1,024, and the benchmarks with a peer.
--scale=rehearsal makes the same runs of tiny networks, in minutes on a CPU.

Each run has a folder in the output folder. A complete run is not made again, and a stopped run goes
on; to make a run anew, remove its folder. Runs whose text is not given are left out, except at the
scales smoke and rehearsal, where they read the text of this package.

Writes index.md: for each figure and table the claim, the published numbers, the measured ones
with theory, the picture, the command, versions and time.
"""

import os
from pathlib import Path
import shlex
import signal
import subprocess
import sys

from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import some_of
from bornbiased_jax.files import local, write_atomically

from ..shared import program, session
from ..shared.results import make_directory
from ..shared.settings import ProgramSettings, name_flag, setting
from . import catalogue, page
from .catalogue import ITEMS, TEXTS, Run

# The scale of its programs, by that of all.
SCALES = {'smoke': 'smoke', 'laptop': 'laptop', 'overnight': 'laptop', 'paper': 'paper',
          'gpu': 'paper', 'rehearsal': 'smoke'}
Texts = type('Texts', (ProgramSettings,), {
    '__annotations__': dict.fromkeys(TEXTS, str | None),
    **{name: setting(None, str, f'{what}, in a form that pretrain takes')
       for name, what in TEXTS.items()}})


class Settings(Texts):
  only: list[str] = setting(
      [], some_of(*(name for item in ITEMS for name in item.names)),
      'figures and tables, such as fig1,table4; if not given, all')
  output_dir: str | None = setting(
      None, str, 'folder of all results; if not given, results/reproduce_SCALE')

  SCALES = tuple(SCALES)


def main(settings: Settings) -> None:
  place = settings.output_dir or f'results/reproduce_{settings.scale}'
  output_dir = name_flag('output_dir', local, place)
  make_directory(output_dir)
  heed_signals()
  with session.hold(output_dir):
    run_all(settings, output_dir)


def run_all(settings: Settings, output_dir: Path) -> None:
  """Runs what is not complete, and writes the page after each run."""
  items = [item for item in ITEMS if not settings.only or set(settings.only) & set(item.names)]
  texts = {name: given for name in TEXTS if (given := getattr(settings, name))}
  todo = catalogue.runs(items, settings.scale)
  commands = {run.folder: command(run, settings.scale, output_dir, texts) for run in todo}
  shown = {folder: shlex.join(['python', *words]) for folder, words in commands.items()}
  problems: dict[str, str] = {}
  failed = []
  for place, run in enumerate(todo, 1):
    folder, start = run.folder, f'[{place}/{len(todo)}] {run.folder}'
    if is_complete(run, shown[folder], output_dir):
      problem = late(run, output_dir)
    elif not (problem := obstacle(run, settings.scale, texts, output_dir)):
      print(f'{start}, about {run.minutes[settings.scale]:g} min: {shown[folder]}', flush=True)
      if code := exit_code(commands[folder], output_dir / 'compiled'):
        problem = f'Failed with exit code {code}.'
        failed.append(folder)
    if problem:
      print(f'{start}: {problem}', flush=True)
      problems[folder] = problem
    write_atomically(output_dir / 'index.md', page.render(
        settings.scale, items, shown, problems, output_dir).encode())
  print(f'wrote {output_dir}/index.md')
  if failed:
    raise InputError(f'{", ".join(failed)} failed; what they said is above')


def command(run: Run, scale: str, output_dir: Path, texts: dict[str, str]) -> list[str]:
  """What follows `python` to make a run."""
  given = {'scale': SCALES[scale], 'output_dir': str(output_dir / run.folder),
           **run.settings(scale),
           **{flag: str(output_dir / path) for flag, path in run.reads.items()},
           **{flag: ','.join(found) for flag, names in run.texts.items()
              if (found := [texts[name] for name in names.split(',') if name in texts])}}
  return ['-m', f'experiments.{run.program}', *run.words,
          *(f'--{flag}={text}' for flag, text in given.items())]


def is_complete(run: Run, command: str, output_dir: Path) -> bool:
  """Whether this run is complete; raises InputError if it is, but by another command."""
  content = page.read(output_dir / run.folder)
  if not content.get('complete'):
    return False
  if (content.get('run') or {}).get('command') not in (None, command):
    raise InputError(f'--output_dir: {output_dir / run.folder} was made by other flags; choose '
                     'another folder, or remove this one')
  return True


def obstacle(run: Run, scale: str, texts: dict[str, str], output_dir: Path) -> str | None:
  """Why a run cannot begin, in a sentence; None if it can."""
  missing = [name for name in run.needs if name not in texts]
  if missing and SCALES[scale] != 'smoke':
    return f'Not run: needs --{missing[0]}, {TEXTS[missing[0]]}.'
  begun = [folder for folder in run.after if page.read(output_dir / folder)]
  for folder in run.readable + begun:
    if not page.read(output_dir / folder).get('complete'):
      return f'Not run: needs {folder}, which is not complete.'
  return None


def late(run: Run, output_dir: Path) -> str | None:
  """What a complete run lacks because it was trained afterwards, in a sentence, or None."""
  started = lambda folder: (page.read(output_dir / folder).get('run') or {}).get('started') or ''
  for folder in run.after:
    if started(folder) > started(run.folder) > '':
      return f'Made before {folder}, which it reads; remove {run.folder}, and it is made again.'
  return None


def heed_signals() -> None:
  """SIGTERM is as Ctrl-C, and Ctrl-C reaches the programs that this one starts.

  A shell that starts a command with & has it ignore Ctrl-C, and with it all that it starts.
  """
  for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, signal.default_int_handler)


def exit_code(command: list[str], cache: Path) -> int:
  """The exit code of `python` with these arguments.

  What it compiles is kept in `cache` for other programs, unless the environment names another
  place. When this program is interrupted, so is that one, and keeps what it has.
  """
  environment = {'JAX_COMPILATION_CACHE_DIR': str(cache.resolve()), **os.environ}
  process = subprocess.Popen([sys.executable, *command], env=environment)
  try:
    return process.wait()
  except KeyboardInterrupt:
    process.send_signal(signal.SIGINT)
    process.wait()
    raise


if __name__ == '__main__':
  program.run(main, 'reproduce', Settings, __doc__, has_folder=False)
