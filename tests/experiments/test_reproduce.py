"""One command for the whole paper: what it runs, in which order, and what its page says."""

import json
from pathlib import Path
import re
import subprocess
import sys

import pytest

from bornbiased_jax.errors import InputError
from experiments import source
from experiments.reproduce import __main__ as reproduce
from experiments.reproduce import catalogue, page
from experiments.reproduce.catalogue import ITEMS, Run
from experiments.shared import base_settings
from experiments.shared.settings import resolve
import programs
import two_hosts

START = re.escape('python -m experiments.')
MEASURED = Path(reproduce.__file__).parents[1] / 'measured'
EVERY_RUN = [(scale, run) for scale in reproduce.SCALES for run in catalogue.runs(ITEMS, scale)]


def test_every_figure_and_table_of_the_paper_has_its_place():
  names = [name for item in ITEMS for name in item.names]
  of_paper = {f'fig{k}' for k in range(1, 15)} | {f'table{k}' for k in range(1, 15)}
  assert of_paper <= set(names) and len(set(names)) == len(names)


def settings_of(run, scale):
  """What the program of a run makes of its command."""
  program = programs.load(run.program)
  texts = {name: f'{name}.txt' for name in catalogue.TEXTS}
  _, module, *words = reproduce.command(run, scale, Path('out'), texts)
  assert module == program.__name__.removesuffix('.__main__')
  given = dict(word.removeprefix('--').split('=', 1) for word in words[len(run.words):])
  assert given.pop('output_dir') == f'out/{run.folder}'
  return resolve(program.Settings, given.pop('scale'), run.words, **given)


@pytest.mark.parametrize('scale, run', EVERY_RUN, ids=lambda each: getattr(each, 'folder', each))
def test_programs_take_the_flags_of_their_runs(scale, run):
  settings = settings_of(run, scale)
  if getattr(settings, 'keep_steps', None):
    base_settings.check_keep_steps(settings)
  # Each network is compared with another one that is not its own, and thresholds need several.
  assert run.program != 'robustness' or len(settings.seeds) >= 3


@pytest.mark.parametrize('scale', reproduce.SCALES)
def test_a_run_comes_after_those_that_it_reads(scale):
  for items in (ITEMS, *([item] for item in ITEMS)):
    done = set()
    for run in catalogue.runs(items, scale):
      assert set(run.readable) <= done
      assert run.folder not in done
      done.add(run.folder)


def test_a_rehearsal_makes_every_run_of_the_gpu_with_networks_that_a_cpu_bears():
  runs = catalogue.runs(ITEMS, 'gpu')
  assert runs == catalogue.runs(ITEMS, 'rehearsal')
  assert [run.folder for run in runs[:2]] == ['text_sinks_english', 'seed_sweep_1b2']
  for run in runs:
    given, of_gpu = run.settings('rehearsal'), settings_of(run, 'gpu')
    assert all(name.startswith('tiny') for name in given.get('config', 'tiny').split(',')[:1])
    assert given.keys() >= run.settings('gpu').keys() and of_gpu.scale == 'paper'
    # The machine has no network to fetch texts from: those of the first run must be brought.
    assert not run.readable and bool(run.needs) == (run is runs[0])
    assert reproduce.obstacle(run, 'rehearsal', {}, Path('out')) is None


def test_every_stored_result_is_made_by_a_run_or_has_its_command():
  made = {run.folder for run in catalogue.runs(ITEMS, 'overnight')}
  others = {path.name for path in MEASURED.iterdir() if path.is_dir()} - made
  # Those whose pages say it instead.
  for folder in others - {'scale_plan', 'text_sinks_english'}:
    contents = [json.loads(path.read_text()) for path in (MEASURED / folder).glob('*.json')]
    commands = [(each.get('run') or {}).get('command') or '' for each in contents]
    names = [match[1] for each in commands if (match := re.match(START + r'([\w.]+)', each))]
    assert names and all(source(name).exists() for name in names), folder


@pytest.mark.parametrize('run', catalogue.runs(ITEMS, 'overnight'), ids=lambda run: run.folder)
def test_a_run_measures_what_is_stored(run):
  path = MEASURED / run.folder / 'results.json'
  if not path.exists():
    pytest.skip('not stored')
  stored, asked = json.loads(path.read_text())['settings'], vars(settings_of(run, 'overnight'))
  for name in stored.keys() & asked.keys() - {*run.reads, *run.texts}:
    are_words = isinstance(stored[name], list) and all(
        isinstance(each, str) for each in stored[name])
    # What is stored may be of the time before a method or an intervention was added.
    assert stored[name] == asked[name] or (
        are_words and set(stored[name]) < set(asked[name])), name


def test_only_names_what_is_there():
  with pytest.raises(InputError, match="--only: 'fig99' is not one of sinks, fig1"):
    resolve(reproduce.Settings, only='fig1,fig99')


RUN = Run('amplification', dict(smoke=0.1, laptop=30))
READER = Run('persistence', dict(laptop=1), reads={'study': 'training_study/english'})


@pytest.fixture
def stored(tmp_path):
  """Writes what results.json says of a run, and returns the folder of all."""
  def store(folder, **content):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / 'results.json').write_text(json.dumps({'complete': False} | content))
    return tmp_path

  return store


def test_obstacles(tmp_path, stored):
  obstacle = lambda run, scale='laptop', texts={}: reproduce.obstacle(run, scale, texts, tmp_path)
  assert obstacle(RUN) is None
  assert obstacle(RUN._replace(needs=('python',))) == (
      'Not run: needs --python, Python source to go on with.')
  assert obstacle(RUN._replace(needs=('python',)), 'smoke') is None
  assert obstacle(RUN._replace(needs=('python',)), texts={'python': 'x'}) is None
  assert 'needs training_study' in obstacle(READER)
  stored('training_study', complete=True)
  assert obstacle(READER) is None
  waits = READER._replace(after=('training_study/stories',))
  assert obstacle(waits) is None
  stored('training_study/stories')
  assert 'needs training_study/stories' in obstacle(waits)


def test_what_is_complete_is_known(tmp_path, stored):
  assert not reproduce.is_complete(RUN, 'python', tmp_path)
  stored(RUN.folder, run={'command': 'python'})
  assert not reproduce.is_complete(RUN, 'python', tmp_path)
  stored(RUN.folder, run={'command': 'python'}, complete=True)
  assert reproduce.is_complete(RUN, 'python', tmp_path)
  with pytest.raises(InputError, match='amplification was made by other flags'):
    reproduce.is_complete(RUN, 'another', tmp_path)


def test_what_a_run_lacks_is_said(tmp_path, stored):
  reader = RUN._replace(after=('training_study/stories',))
  stored(RUN.folder, run={'started': '2026-01-02T00:00:00+00:00'}, complete=True)
  assert reproduce.late(reader, tmp_path) is None
  for day, is_late in ((1, False), (3, True)):
    stored('training_study/stories', run={'started': f'2026-01-0{day}T00:00:00+00:00'})
    assert bool(reproduce.late(reader, tmp_path)) == is_late
  assert reproduce.late(reader, tmp_path).startswith(
      'Made before training_study/stories, which it reads; ')


def test_an_interrupt_reaches_the_program(tmp_path):
  """Also if a shell that started this one with & has it ignore Ctrl-C."""
  program = ('import pathlib, time\ntry: time.sleep(100)\n'
             f'except KeyboardInterrupt: pathlib.Path({str(tmp_path / "kept")!r}).touch()')
  code = ('from experiments.reproduce import __main__ as reproduce\nimport pathlib, signal\n'
          'signal.signal(signal.SIGINT, signal.SIG_IGN)\nreproduce.heed_signals()\n'
          'signal.signal(signal.SIGALRM, signal.default_int_handler)\nsignal.alarm(1)\n'
          f'reproduce.exit_code(["-c", {program!r}], pathlib.Path("."))')
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert 'KeyboardInterrupt' in done.stderr and (tmp_path / 'kept').exists()


def test_a_run_that_fails_is_said(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(reproduce, 'command', lambda *_: ['-c', 'import sys; sys.exit(7)'])
  with pytest.raises(InputError, match='amplification failed; what they said is above'):
    reproduce.main(resolve(reproduce.Settings, 'smoke', only='table3', output_dir=str(tmp_path)))
  assert 'amplification: Failed with exit code 7.' in capsys.readouterr().out
  assert 'Failed with exit code 7.' in (tmp_path / 'index.md').read_text()


@pytest.mark.parametrize('content', ['{"environment": [', '[]', '{"complete": true}'])
def test_damaged_results_do_not_stop_the_page(tmp_path, content):
  (tmp_path / RUN.folder).mkdir()
  (tmp_path / RUN.folder / 'results.json').write_text(content)
  text = page.render('laptop', [ITEMS[0]._replace(runs=(RUN,))], {RUN.folder: ''}, {}, tmp_path)
  assert 'Transformers Are Born Biased' in text


@pytest.fixture
def made(tmp_path, capfd, monkeypatch):
  """What one figure's page says, made by running its program twice, here."""
  monkeypatch.setattr(reproduce, 'exit_code', lambda command, cache: two_hosts.run_here(
      command[1].removeprefix('experiments.'), *command[2:])[0])
  for _ in range(2):
    reproduce.main(resolve(reproduce.Settings, 'smoke', only='table3', output_dir=str(tmp_path)))
  assert capfd.readouterr().out.count('[1/1] amplification, about 0.1 min: python -m') == 1
  return tmp_path, (tmp_path / 'index.md').read_text()


@pytest.mark.slow
def test_the_page_has_table_and_picture(made):
  folder, text = made
  table = (folder / 'amplification' / 'table.md').read_text()
  assert table.strip() in text and 'Proposition 4' in text
  assert '--scale=smoke' in text and '1 of 1 runs are complete' in text
  made = json.loads((folder / 'amplification' / 'results.json').read_text())
  assert f'JAX {made["environment"]["jax"]}' in text
  picture, = re.findall(r'!\[.*\]\((.*)\)', text)
  assert (folder / picture).is_file()
