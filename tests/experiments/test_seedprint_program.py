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
  assert printed.out.startswith(f'RELATED: {A} and {A}')
  assert '2 networks to read' in printed.err and '1 pair to compare: about' in printed.err
  assert 'both hold the same numbers' in ' '.join(report['reasons'])
  assert (folder / 'figure.png').stat().st_size > 10_000
  page = (folder / 'report.html').read_text()
  for row in report['tests']:
    assert f'<td>{row["test"]}</td>' in page
  for known in (report['base']['digest'], report['base']['type'], report['run']['started'],
                report['run']['commit'], 'sha256sum', 'data:image/png;base64,',
                *report['summary']):
    assert known in page
  assert not re.search(r'(src|href)="(?!data:)', page)
  # Another pair does not overwrite it, nor does a saved file instead of a network.
  code, report, other = run(tmp_path, base=A, suspect=B)
  assert (code, report['verdict']) == (5, 'unrelated') and other != folder
  are, would, had = report['summary']
  assert 'are unrelated, as far as these tests can tell' in are and 'would have been found' in would
  assert had == 'All 7 tests had a result.'
  saved = [str(path) for path in sorted((tmp_path / 'signatures').glob('*.safetensors'))]
  assert len(saved) == 2
  capsys.readouterr()
  # What is saved keeps its probe, which another network then reads.
  for pair, count in ((saved, '1000'), (saved[::-1], '1000'), ((saved[0], C), '300')):
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
  whether, what, had = report['summary']
  assert whether.startswith('Whether ') and 'no finding in either direction' in what
  assert had.startswith(f'{len(missing)} of 7 tests had no result')


def test_how_certain_a_verdict_is():
  related = {'verdict': 'related', 'identical': False, 'p_value': 1e-6}
  assert 'at most one of 1,000,000 unrelated pairs' in seedprint.certainty(related)


@pytest.mark.parametrize('decides, p_value, text', [
    (True, 0.01, '≤ 0.01'), (False, 0.01, '0.01'), (False, 1e-12, '≤ 1e-12')])
def test_a_bound_of_a_p_value_is_shown_as_one(decides, p_value, text):
  assert verdicts.p_of_test({'decides': decides, 'p_value': p_value}) == text


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
  with pytest.raises(InputError, match='--suspect: is missing'):
    named('a')


@pytest.mark.parametrize('words, given, message', [
    (('a', 'b', 'c'), {}, 'give two networks'), (('a', 'b'), dict(base='c'), 'give two networks'),
    ((), {}, '--base: is missing'), (('tiny_gpt2:1',), {}, '--suspect: is missing'),
    (('tiny_gpt2:1', 'tiny_gpt2:x'), {}, "--suspect: tiny_gpt2:x: 'x' is not a seed"),
    (('tiny_gpt2:1', 'tiny_gpt2:2'), dict(length='1025'), '--length: 1025 exceeds the 1024'),
    (('tiny_gpt2:1', 'tiny_gpt2:2'), dict(num_ids='3000'), '--num_ids: 3000 exceeds the 2048'),
])
def test_mistakes_are_named_before_anything_is_written(tmp_path, words, given, message):
  with pytest.raises(InputError, match=message):
    seedprint.main(settings(*words, **given), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_names_from_elsewhere_stay_text():
  hostile = '<script>alert(1)</script>'
  network = {'name': hostile, 'type': hostile, 'parameters': 1, 'digest': hostile}
  pair = {'verdict': 'inconclusive', 'reasons': ['<b>'], 'caveats': [hostile], 'tests': [],
          'base': network, 'suspect': network, 'summary': [hostile], 'settings': {'base': hostile},
          'environment': {}, 'run': {'started': None, 'seconds': None, 'commit': hostile,
                                     'command': hostile}}
  left_out = [{'name': hostile, 'reason': hostile}]
  page = verdicts.render(seedprint.facts(pair) | {'left_out': left_out}, b'')
  assert '<script>' not in page and '&lt;b&gt;' in page
