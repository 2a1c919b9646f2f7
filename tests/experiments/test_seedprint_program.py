"""The program that judges a pair: words and flags, exit codes, files, and mistakes."""

import json
import re

import pytest

from bornbiased_jax.errors import InputError
from experiments.seedprint import __main__ as seedprint
from experiments.shared import verdicts
from experiments.shared.settings import resolve

A, B, C = (f'tiny_gpt2,num_layers=2,mlp_width=64:{seed}' for seed in (1, 2, 3))
OTHER_FAMILY = 'tiny_llama2,num_layers=2,mlp_width=64:2'


def settings(*words, **given):
  return resolve(seedprint.Settings, 'laptop', words,
                 **dict(num_sequences='1000', length='4') | given)


def run(output_dir, *words, **given):
  """Exit code, report and folder of a run."""
  before = set(output_dir.glob('*/results.json'))
  with pytest.raises(SystemExit) as stop:
    seedprint.main(settings(*words, **given), output_dir)
  path, = set(output_dir.glob('*/results.json')) - before
  named = seedprint.name_pair(settings(*words, **given))
  assert path.parent == output_dir / seedprint.folder_name(named)
  return stop.value.code, json.loads(path.read_text()), path.parent


@pytest.mark.slow
def test_verdicts_exit_codes_and_files(tmp_path, capsys):
  code, report, folder = run(tmp_path, A, A)
  assert (code, report['verdict'], report['schema']) == (0, 'related', 3)
  assert report['run'].keys() == {'command', 'commit', 'processor', 'started', 'seconds'}
  printed = capsys.readouterr()
  assert printed.out.startswith('RELATED: ') and 'pair to compare: about' in printed.err
  assert (folder / 'figure.png').stat().st_size > 10_000
  page = (folder / 'report.html').read_text()
  for row in report['tests']:
    assert f'<td>{row["test"]}</td>' in page
  for known in (report['base']['digest'], report['base']['type'], report['run']['started'],
                report['run']['commit'], 'sha256sum', 'data:image/png;base64,',
                *report['summary']):
    assert known in re.sub('</?bdi>', '', page)
  assert not re.search(r'src="(?!data:)|href="(?!results.json"|figure.png")', page)
  # Another pair does not overwrite it, nor does a saved file instead of a network.
  code, report, other = run(tmp_path, base=A, suspect=B)
  assert (code, report['verdict']) == (5, 'unrelated') and other != folder
  saved = [str(path) for path in sorted((tmp_path / 'signatures').glob('*.safetensors'))]
  assert len(saved) == 2
  capsys.readouterr()
  # What is saved keeps its probe, which another network then reads.
  for pair, count in ((saved, '1000'), ((saved[0], C), '300')):
    code, again, _ = run(tmp_path, *pair, json=True, num_sequences=count)
    assert json.loads(capsys.readouterr().out) == again
    assert (code, again['verdict'], again['sequences']) == (5, 'unrelated', 1000)
    assert [row['reason'] for row in again['tests']] == [None] * len(report['tests'])


@pytest.mark.slow
def test_a_figure_that_fails_loses_no_verdict(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(seedprint.picture, 'draw', lambda report: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    seedprint.main(settings(A, A), tmp_path)
  path, = tmp_path.glob('*/results.json')
  assert json.loads(path.read_text())['verdict'] == 'related'
  assert capsys.readouterr().out.startswith('RELATED: ')


@pytest.mark.slow
def test_a_test_without_a_result_has_its_reason_instead(tmp_path, capsys):
  code, report, folder = run(tmp_path, A, OTHER_FAMILY)
  assert (code, report['verdict']) == (3, 'inconclusive')
  printed, page = capsys.readouterr().out, (folder / 'report.html').read_text()
  missing = [row for row in report['tests'] if row['reason']]
  assert {row['test'] for row in missing} >= {'unit order', 'unit order, fitted basis'}
  for row in missing:
    assert f'{row["test"]}: no result, as {row["reason"]}' in ' '.join(printed.split())
    assert f'no result, as {row["reason"]}' in page


def test_a_verdict_does_not_overwrite_that_on_another_pair(tmp_path):
  """Two pairs whose names differ in signs alone have one folder."""
  one, other = (settings(*pair) for pair in (('a/b', 'c'), ('a_b', 'c')))
  one, other = map(seedprint.name_pair, (one, other))
  folder = tmp_path / seedprint.folder_name(one)
  assert folder == tmp_path / seedprint.folder_name(other)
  folder.mkdir()
  (folder / 'results.json').write_text(json.dumps({'settings': {'base': 'a/b', 'suspect': 'c'}}))
  seedprint.check_folder(folder, one)
  with pytest.raises(InputError, match='has the verdict on a/b and c; choose another folder'):
    seedprint.check_folder(folder, other)
  (folder / 'results.json').write_text('torn')
  seedprint.check_folder(folder, other)


def test_words_take_the_place_of_the_scales_networks():
  named = lambda *words: seedprint.name_pair(resolve(seedprint.Settings, 'smoke', words))
  assert (named().base, named().suspect) == ('tiny_gpt2:1', 'tiny_gpt2:2')
  assert (named('a', 'b').base, named('a', 'b').suspect) == ('a', 'b')
  with pytest.raises(InputError, match='a: give two models, either as words .* a model is RUN'):
    named('a')


def test_names_from_elsewhere_stay_text():
  hostile = '<script>alert(1)</script>'
  network = {'name': hostile, 'type': hostile, 'parameters': 1, 'digest': hostile}
  pair = {'verdict': 'inconclusive', 'reasons': ['<b>'], 'caveats': [hostile], 'tests': [],
          'base': network, 'suspect': network, 'identical': False,
          'settings': {'base': hostile, 'suspect': hostile, 'num_sequences': 1},
          'environment': {}, 'run': {'started': None, 'seconds': None, 'commit': hostile,
                                     'command': hostile}}
  left_out = [{'name': hostile, 'reason': hostile}]
  page = verdicts.render(seedprint.facts(pair) | {'left_out': left_out}, b'')
  assert '<script>alert' not in page and '&lt;b&gt;' in page
