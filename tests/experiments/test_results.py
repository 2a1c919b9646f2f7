"""results.json: kept while rows are added, resumed, or refused."""

from datetime import UTC, datetime, timedelta
import json
import math
import os
from pathlib import Path
import subprocess
import time
from types import SimpleNamespace

from matplotlib.figure import Figure
import numpy as np
import pytest

from bornbiased_jax import environment
from bornbiased_jax.errors import InputError
from experiments import seed_sweep
from experiments.shared import results, session
from experiments.shared.results import Results, write_json
from experiments.shared.settings import resolve

ROWS = [{'seed': 0, 'cosine': 0.25}, {'seed': 1, 'cosine': 0.5}]


def open_results(directory, experiment='sweep', num_sequences=60, **settings):
  return Results(directory, experiment, SimpleNamespace(num_sequences=num_sequences, **settings))


def saved(directory):
  return json.loads((directory / 'results.json').read_text())


def finish(opened, mean):
  opened.finish([{'mean': mean}], lambda row: {'mean': str(row['mean'])}, Figure)


@pytest.fixture
def run(tmp_path):
  """The folder of a run that is complete."""
  opened = open_results(tmp_path / 'run', lengths=[4, 8])
  for row in ROWS:
    opened.add(row)
  finish(opened, 0.375)
  return tmp_path / 'run'


def test_a_run_says_how_it_came_about(tmp_path, monkeypatch):
  program = Path(session.__file__).parents[1] / 'sweep.py'
  monkeypatch.setattr('sys.argv', [str(program), '--seeds=1,2', '--output_dir=my run'])
  opened = open_results(tmp_path)
  opened.add(ROWS[0])
  how = saved(tmp_path)['run']
  assert how['command'] == "python -m experiments.sweep --seeds=1,2 '--output_dir=my run'"
  assert abs(datetime.now(UTC) - datetime.fromisoformat(how['started'])) < timedelta(minutes=5)
  assert how['commit'] == session.commit()
  assert how['processor'] == environment.processor() and str(os.cpu_count()) in how['processor']
  monkeypatch.setattr(session, '__package__', 'bornbiased_experiments.shared')
  for program, typed in (('sweep.py', 'sweep'), ('audit/__main__.py', 'audit'),
                         ('audit/injections.py', 'audit.injections')):
    monkeypatch.setattr('sys.argv', [str(session._PROGRAMS / program), 'a b'])
    assert session.command() == f"bornbiased {typed} 'a b'"
  monkeypatch.setattr('sys.argv', ['/somewhere/sweep.py'])
  assert session.command() is None


def test_the_record_of_several_sessions_has_all_commits_and_all_time(monkeypatch):
  record = None
  for made_by in ('one', 'another', 'one'):
    monkeypatch.setattr(session, 'commit', lambda made_by=made_by: made_by)
    now = session.begin(record)()
    assert record is None or now['started'] == record['started']
    record = now | {'seconds': now['seconds'] + 100}
  assert record['processor'] == environment.processor()
  earlier = {name: value for name, value in record.items() if name != 'processor'}
  assert session.begin(earlier)()['processor'] == f'unknown, {environment.processor()}'
  assert record['commit'] == 'one, another' and 300 <= record['seconds'] < 310


def test_what_is_noted_repeatedly_is_also_noted_at_the_end(monkeypatch):
  monkeypatch.setattr(session, 'TICK', 0.02)
  noted = []
  with pytest.raises(KeyboardInterrupt), session.repeatedly(lambda: noted.append('now')):
    while len(noted) < 3:  # Once at the beginning, twice while it goes on.
      time.sleep(0.01)
    noted.append('interrupted')
    raise KeyboardInterrupt
  assert noted[-1] == 'now' and 'interrupted' in noted


@pytest.mark.usefixtures('present_commit')
def test_rows_of_two_installed_versions_are_not_mixed(tmp_path, monkeypatch):
  monkeypatch.setattr(session, '_ROOT', tmp_path)  # No checkout, so that there is no commit.
  first = open_results(tmp_path)
  first.add(ROWS[0])
  write_json(first.path, first.content)
  assert open_results(tmp_path).rows == ROWS[:1]  # The same code goes on.
  older = first.content | {'run': first.content['run'] | {'commit': None}}
  write_json(first.path, older)
  with pytest.raises(InputError, match='holds a run with commit=None, not files-'):
    open_results(tmp_path)
  write_json(first.path, older | {'complete': True})
  finish(open_results(tmp_path), 0.25)
  assert saved(tmp_path)['run'] == older['run']


@pytest.mark.usefixtures('present_commit')
def test_installed_code_is_told_from_another_version(tmp_path, monkeypatch):
  found = []
  for code in ('shared probe', 'own probe', 'own probe'):
    (tmp_path / 'ablation.py').write_text(code)
    monkeypatch.setattr(session, '_ROOT', tmp_path)
    monkeypatch.setattr(session, '_PROGRAMS', tmp_path)
    session._digest.cache_clear()
    found.append(session.commit())
  session._digest.cache_clear()
  assert found[0] != found[1] == found[2]


@pytest.mark.usefixtures('present_commit')
def test_the_commit_is_that_of_this_code_whatever_git_is_told(tmp_path, monkeypatch):
  other = ['git', '-C', str(tmp_path)]
  subprocess.run([*other, 'init', '-q'], check=True)
  subprocess.run([*other, '-c', 'user.name=a', '-c', 'user.email=a', 'commit', '-q', '-m', 'other',
                  '--allow-empty'], check=True)
  here = session.commit()
  monkeypatch.setenv('GIT_DIR', str(tmp_path / '.git'))
  assert session.commit() == here


def test_a_figure_that_fails_loses_no_result(tmp_path, capsys):
  opened = open_results(tmp_path)
  with pytest.raises(ZeroDivisionError):
    opened.finish([{'mean': 0.5}], lambda row: {'mean': str(row['mean'])}, lambda: 1 / 0)
  assert json.loads((tmp_path / 'results.json').read_text())['complete']
  assert '0.5' in capsys.readouterr().out and '0.5' in (tmp_path / 'table.md').read_text()


def test_a_complete_run_gets_no_more_rows(run):
  opened = open_results(run, lengths=[4, 8])
  assert opened.lacking([{'seed': 0}, {'seed': 2}]) == []  # A later version would measure it.
  with pytest.raises(InputError, match='is complete, but lacks what would be measured'):
    opened.add({'seed': 2})
  assert saved(run)['rows'] == ROWS


def test_a_file_of_an_earlier_version_is_drawn_again(run):
  content = saved(run)
  del content['run']
  write_json(run / 'results.json', content)
  opened = open_results(run, lengths=[4, 8])
  assert opened.rows == ROWS and opened.content['run'] is None
  finish(opened, 0.375)
  assert saved(run)['run'] is None


def test_rows_reach_the_file_while_a_run_goes_on(tmp_path, monkeypatch):
  opened = open_results(tmp_path)
  assert not any(tmp_path.iterdir())
  with opened.keeping():
    assert saved(tmp_path)['rows'] == [] and not saved(tmp_path)['complete']
    opened.add(ROWS[0])  # Within a second of the last writing.
    assert saved(tmp_path)['rows'] == []
    monkeypatch.setattr(results, 'WRITE_INTERVAL_S', -1.0)
    opened.add(ROWS[1])
    assert saved(tmp_path)['rows'] == ROWS


def test_an_interrupted_run_loses_no_row(tmp_path):
  opened = open_results(tmp_path)
  with pytest.raises(KeyboardInterrupt):
    for row in opened.missing(ROWS, 'row'):
      opened.add(row)
    with opened.keeping():
      opened.add(ROWS[0])
      raise KeyboardInterrupt
  assert saved(tmp_path)['rows'] == [*ROWS, ROWS[0]]


@pytest.mark.parametrize('changed, message', [
    (dict(num_sequences=61), 'num_sequences=60, not 61'),
    (dict(lengths=[4]), r'lengths=\[4, 8\], not \[4\]'),
    (dict(depth=3), 'depth=None, not 3'),
    (dict(experiment='contraction'), 'experiment=sweep, not contraction'),
])
def test_other_settings_in_the_same_folder_are_refused(changed, message, run):
  before = (run / 'results.json').read_bytes()
  with pytest.raises(InputError, match=f'--output_dir.*{message}'):
    open_results(run, **{'lengths': [4, 8]} | changed)
  assert (run / 'results.json').read_bytes() == before


def test_rows_of_another_environment_are_drawn_and_not_gone_on_with(run):
  content = saved(run)
  content['environment']['jax'] = '0.4.1'
  write_json(run / 'results.json', content)
  assert open_results(run, lengths=[4, 8]).rows == ROWS
  write_json(run / 'results.json', content | {'complete': False})
  with pytest.raises(InputError, match='environment jax=0.4.1, not'):
    open_results(run, lengths=[4, 8])


@pytest.mark.parametrize('content', [
    '', '{', '[]', 'null', '{"rows": []}', '{"experiment": 3, "settings": [1]}'])
def test_a_foreign_file_is_refused_and_kept(content, tmp_path):
  (tmp_path / 'results.json').write_text(content)
  with pytest.raises(InputError, match='not a results file'):
    open_results(tmp_path)
  assert (tmp_path / 'results.json').read_text() == content


def test_a_run_without_rows_gives_way_to_other_settings(run):
  empty = saved(run) | {'complete': False, 'rows': [], 'summary': []}
  (run / 'results.json').write_text(json.dumps(empty))
  opened = open_results(run, lengths=[4])
  assert opened.content['settings']['lengths'] == [4] and opened.rows == []


def test_a_run_that_was_killed_before_its_first_row_keeps_its_time(tmp_path, monkeypatch):
  first = open_results(tmp_path)
  write_json(first.path, first.content | {'run': first.content['run'] | {'seconds': 100.0}})
  second = open_results(tmp_path)
  second.write()
  assert 100 <= saved(tmp_path)['run']['seconds'] < 200
  monkeypatch.setattr(session, 'commit', lambda: 'another')
  open_results(tmp_path).write()
  assert saved(tmp_path)['run']['commit'] == 'another'
  assert saved(tmp_path)['run']['seconds'] < 100


def test_a_folder_that_cannot_be_written_is_refused(monkeypatch, tmp_path):
  def full(path, content):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(results, 'write_atomically', full)
  with pytest.raises(InputError, match='--output_dir: cannot write .*No space left on device'):
    next(open_results(tmp_path).missing(ROWS, 'row'))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(InputError, match='--output_dir: .*file is a file; give a folder'):
    results.make_directory(tmp_path / 'file')
  with pytest.raises(InputError, match='--output_dir: cannot make .*file'):
    next(open_results(tmp_path / 'file' / 'run').missing(ROWS, 'row'))


def test_what_json_lacks_becomes_null_or_a_list(tmp_path):
  opened = open_results(tmp_path)
  opened.add({'nan': math.nan, 'inf': np.float32(np.inf), 'array': np.array([1.5, np.nan]),
              'count': np.int64(3), 'nested': {'pair': (1, -math.inf)}})
  assert opened.rows == [{'nan': None, 'inf': None, 'array': [1.5, None], 'count': 3,
                          'nested': {'pair': [1, None]}}]
  results.write_json(tmp_path / 'other.json', {'rows': opened.rows, 'none': [], 'x': math.nan})
  text = (tmp_path / 'other.json').read_text()
  assert json.loads(text) == {'rows': opened.rows, 'none': [], 'x': None}
  assert text.count('\n  {') == len(opened.rows)


@pytest.mark.parametrize('given, is_same', [({}, True), ({'probe_seed': '1'}, False)])
def test_a_file_of_an_earlier_version_had_the_defaults_of_what_it_lacks(tmp_path, given, is_same):
  settings = resolve(seed_sweep.Settings, 'smoke')
  finish(Results(tmp_path, 'seed_sweep', settings), 1.0)
  content = saved(tmp_path)
  for name in ('probe_seed', 'tokenizer'):
    del content['settings'][name]
  (tmp_path / 'results.json').write_text(json.dumps(content))
  again = resolve(seed_sweep.Settings, 'smoke', **given)
  if is_same:
    assert Results(tmp_path, 'seed_sweep', again).summary == content['summary']
  else:
    with pytest.raises(InputError, match='probe_seed=0, not 1'):
      Results(tmp_path, 'seed_sweep', again)
