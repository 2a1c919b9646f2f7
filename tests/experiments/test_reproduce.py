"""One command for the whole paper: what it runs, in which order, and what its page says."""

import html
import json
import subprocess
import sys

import pytest

from bornbiased_jax.errors import InputError
from experiments import reproduce
from experiments.shared import catalogue, report, training_settings
from experiments.shared.catalogue import ITEMS, Run
from experiments.shared.settings import resolve
import programs

MEASURED = reproduce.Path(reproduce.__file__).parent / 'measured'
EVERY_RUN = [(scale, run) for scale in reproduce.SCALES for run in catalogue.runs(ITEMS, scale)]


def test_every_figure_and_table_of_the_paper_has_its_place():
  names = [name for item in ITEMS for name in item.names]
  of_paper = {f'fig{k}' for k in range(1, 15)} | {f'table{k}' for k in range(1, 15)}
  assert of_paper <= set(names) and len(set(names)) == len(names)


def settings_of(run, scale):
  """What the program of a run makes of its command."""
  program = programs.load(run.program)
  texts = dict.fromkeys(catalogue.TEXTS, 'tinyshakespeare')
  _, module, *words = reproduce.command(run, scale, reproduce.Path('out'), texts)
  assert module == program.__name__.removesuffix('.__main__')
  given = dict(word.removeprefix('--').split('=', 1) for word in words)
  assert given.pop('output_dir') == f'out/{run.folder}'
  return resolve(program.Settings, given.pop('scale'), **given)


@pytest.mark.parametrize('scale, run', EVERY_RUN, ids=lambda each: getattr(each, 'folder', each))
def test_programs_take_the_flags_of_their_runs(scale, run):
  settings = settings_of(run, scale)
  if getattr(settings, 'keep_steps', None):
    training_settings.check_keep_steps(settings)


@pytest.mark.parametrize('scale', reproduce.SCALES)
def test_a_run_comes_after_those_that_it_reads(scale):
  for items in (ITEMS, *([item] for item in ITEMS)):
    done = set()
    for run in catalogue.runs(items, scale):
      assert set(run.readable) <= done
      assert run.folder not in done
      done.add(run.folder)


def test_every_stored_result_is_made_by_a_run_or_it_is_said_why_not():
  stored = {path.name for path in MEASURED.iterdir()}
  made = {run.folder for run in catalogue.runs(ITEMS, 'overnight')}
  assert stored - made == set(catalogue.ELSEWHERE)


# What was measured with methods that are gone, and is to be measured anew.
EARLIER = ('robustness_trained', 'baselines', 'baselines_qwen2')


@pytest.mark.parametrize('run', catalogue.runs(ITEMS, 'overnight'), ids=lambda run: run.folder)
def test_a_run_measures_what_is_stored(run):
  path = MEASURED / run.folder / 'results.json'
  if not path.exists():
    pytest.skip('not stored')
  stored, asked = json.loads(path.read_text())['settings'], vars(settings_of(run, 'overnight'))
  if run.folder in EARLIER:
    assert not set(stored['methods']) <= set(asked['methods']), f'{run.folder} is measured anew'
    return
  for name in stored.keys() & asked.keys() - {*run.reads, *run.texts}:
    are_words = isinstance(stored[name], list) and all(
        isinstance(each, str) for each in stored[name])
    # What is stored may be of the time before a method or an intervention was added.
    assert stored[name] == asked[name] or (
        are_words and set(stored[name]) < set(asked[name])), name


def test_only_names_what_is_there():
  with pytest.raises(InputError, match="--only: 'fig99' is not one of fig1, table1"):
    resolve(reproduce.Settings, only='fig1,fig99')


RUN = Run('amplification', dict(smoke=0.1, laptop=30))
READER = Run('persistence', dict(laptop=1), reads={'study': 'training_study/english'})


@pytest.fixture
def state(tmp_path):
  return reproduce.State(tmp_path / 'state.json')


def test_obstacles(state):
  obstacle = lambda run, scale='laptop', texts={}, left=None: reproduce.obstacle(
      run, scale, texts, state, left)
  assert obstacle(RUN) is None and obstacle(RUN, left=31.0) is None
  assert 'about 30 min, more than was left' in obstacle(RUN, left=29.0)
  assert obstacle(RUN._replace(needs=('python',))) == (
      'Not run: needs --python, Python source to go on with.')
  assert obstacle(RUN._replace(needs=('python',)), 'smoke') is None
  assert obstacle(RUN._replace(needs=('python',)), texts={'python': 'x'}) is None
  assert 'needs training_study' in obstacle(READER)
  state.records['training_study'] = {'complete': True}
  assert obstacle(READER) is None
  waits = READER._replace(after=('training_study/stories',))
  state.records['training_study/stories'] = {'problem': 'Not run: needs --stories.'}
  assert obstacle(waits) is None
  state.records['training_study/stories'] = {'command': [], 'problem': 'Stopped before its end.'}
  assert 'needs training_study/stories' in obstacle(waits)


def test_what_was_nearly_done_fits_a_small_budget(state):
  state.records[RUN.folder] = {'command': [], 'seconds': 29 * 60}
  assert reproduce.obstacle(RUN, 'laptop', {}, state, 1.5) is None
  assert 'about 60 s' in reproduce.obstacle(RUN, 'laptop', {}, state, 0.5)


def test_a_folder_is_closed_while_a_program_of_it_lives(tmp_path):
  code = 'import time; time.sleep(100)'
  with reproduce.locked(tmp_path) as lock:
    child = subprocess.Popen([sys.executable, '-c', code], pass_fds=[lock])
  # This program has let go of it, as if it had been killed.
  with pytest.raises(InputError, match='still running'), reproduce.locked(tmp_path):
    pass
  child.kill()
  child.wait()
  with reproduce.locked(tmp_path):
    pass


@pytest.fixture
def lock(tmp_path):
  reproduce.heed_signals()  # As main does; whoever runs the tests may ignore Ctrl-C.
  with reproduce.locked(tmp_path) as file:
    yield file


def fake(code):
  return ['-c', code]


def test_time_adds_up_over_attempts_and_what_is_complete_is_known(state, tmp_path, lock):
  state.run(RUN, fake('import time; time.sleep(0.2)'), None, lock)
  state.records[RUN.folder] |= {'complete': False}
  first = state.records[RUN.folder]['seconds']
  state.run(RUN, fake('import time; time.sleep(0.3)'), None, lock)
  assert state.records[RUN.folder]['seconds'] - first >= 0.2 and first >= 0.2
  state.run(RUN, fake('pass'), None, lock)
  again = reproduce.State(state.path)
  assert again.records == state.records
  assert not again.is_done(RUN, fake('pass'))  # Its results are gone.
  (tmp_path / RUN.folder).mkdir()
  (tmp_path / RUN.folder / 'results.json').write_text('{}')
  assert again.is_done(RUN, fake('pass'))
  with pytest.raises(InputError, match='amplification was made by other flags'):
    again.is_done(RUN, fake('another'))
  reader = RUN._replace(after=('training_study/stories',))
  assert again.is_done(reader, fake('pass')) and again.late(reader) is None
  again.records['training_study/stories'] = {'complete': True}
  assert again.late(reader).startswith('Made before training_study/stories, which it reads; ')
  again.leave_out(reader, again.late(reader))
  assert again.is_done(reader, fake('pass'))
  again.run(reader, fake('pass'), None, lock)
  assert again.is_done(reader, fake('pass')) and again.late(reader) is None


def test_the_time_of_a_run_that_is_killed_is_known(state, lock, monkeypatch):
  monkeypatch.setattr(reproduce, 'TICK', 0.1)
  noted = []
  monkeypatch.setattr(reproduce, 'write_json', lambda path, records: noted.append(
      dict(records[RUN.folder])))
  state.run(RUN, fake('import time; time.sleep(0.5)'), None, lock)
  *unfinished, last = noted
  assert all('before its end' in record['problem'] for record in unfinished)
  assert unfinished[0]['seconds'] < 0.1 < 0.3 < unfinished[-1]['seconds'] <= last['seconds']
  assert last['complete'] and 'problem' not in last


def test_what_was_begun_stays_so_when_it_is_left_out(state):
  state.records['training_study/stories'] = {'command': [], 'problem': 'Stopped before its end.'}
  state.records['training_study'] = {'complete': True}
  state.leave_out(RUN._replace(name='training_study/stories'), 'Not run: needs --stories.')
  waits = READER._replace(after=('training_study/stories',))
  assert 'needs training_study/stories' in reproduce.obstacle(waits, 'laptop', {}, state, None)


def test_a_run_that_fails_or_takes_too_long_is_not_complete(state, lock):
  state.run(RUN, fake('import sys; sys.exit(2)'), None, lock)
  assert state.records[RUN.folder]['failed']
  state.run(RUN, fake('import time; time.sleep(100)'), 0.02, lock)
  record = state.records[RUN.folder]
  assert 'time was up' in record['problem'] and record['seconds'] < 60
  assert not state.is_done(RUN, record['command'])


@pytest.mark.parametrize('content', ['[1, 2', '[1, 2]', '{"amplification": 3}'])
def test_a_foreign_state_is_refused(tmp_path, content):
  (tmp_path / 'state.json').write_text(content)
  with pytest.raises(InputError, match='state.json is not a file of this program'):
    reproduce.State(tmp_path / 'state.json')


def test_damaged_results_do_not_stop_the_page(tmp_path):
  (tmp_path / RUN.folder).mkdir()
  (tmp_path / RUN.folder / 'results.json').write_text('{"environment": [')
  text = report.render('laptop', [ITEMS[0]._replace(runs=(RUN,))], {RUN.folder: []}, {}, tmp_path)
  assert 'results.json cannot be read.' in text


@pytest.fixture
def page(tmp_path, capfd):
  """What one figure's page says, made by running its program twice."""
  for _ in range(2):
    reproduce.main(resolve(reproduce.Settings, 'smoke', only='table3', output_dir=str(tmp_path)))
  assert capfd.readouterr().out.count('[1/1] amplification: python -m') == 1
  return tmp_path, (tmp_path / 'report.html').read_text()


@pytest.mark.slow
def test_the_page_stands_for_itself(page):
  folder, text = page
  table = (folder / 'amplification' / 'table.md').read_text()
  assert html.escape(table).strip() in text and 'Proposition 4' in text
  assert '--scale=smoke' in text and '1 of 1 runs are complete' in text
  made = json.loads((folder / 'amplification' / 'results.json').read_text())
  assert made['environment']['jax'] in text
  assert 'data:image/png;base64,' in text and 'src="http' not in text and '<script' not in text


def test_what_was_not_run_is_said(tmp_path):
  items = [ITEMS[0]._replace(title='<b>', runs=(RUN,))]
  text = report.render('laptop', items, {RUN.folder: ['-c', '"&"']}, {}, tmp_path)
  assert 'Not run.' in text and '<b>' not in text and '0 of 1 runs' in text
  text = report.render('paper', items, {}, {}, tmp_path)
  assert 'Nothing at this scale.' in text
