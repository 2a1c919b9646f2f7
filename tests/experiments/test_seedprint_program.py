"""The program that judges a pair: words and flags, exit codes, files, and mistakes."""

import json
import re

import pytest

from bornbiased_jax.errors import InputError
from experiments import seedprint
from experiments.shared import verdict_page
from experiments.shared.settings import resolve


def settings(*words, **given):
  return resolve(seedprint.Settings, 'laptop', words,
                 **dict(num_sequences='1000', length='4') | given)


def run(output_dir, *words, **given):
  """Exit code, report and folder of a run."""
  before = set(output_dir.glob('*/results.json'))
  with pytest.raises(SystemExit) as stop:
    seedprint.main(settings(*words, **given), output_dir)
  path, = set(output_dir.glob('*/results.json')) - before
  return stop.value.code, json.loads(path.read_text()), path.parent


def test_verdicts_exit_codes_and_files(tmp_path, capsys):
  code, report, folder = run(tmp_path, 'tiny_gpt2:1', 'tiny_gpt2:1')
  assert (code, report['verdict'], report['schema']) == (0, 'related', 3)
  assert report['run'].keys() == {'command', 'commit', 'started', 'seconds'}
  assert capsys.readouterr().out.startswith('RELATED: tiny_gpt2:1 and tiny_gpt2:1')
  assert 'copy of the other' in ' '.join(report['reasons'])
  assert (folder / 'figure.png').stat().st_size > 10_000
  page = (folder / 'report.html').read_text()
  for row in report['tests']:
    assert f'<td>{row["test"]}</td>' in page
  assert report['base']['digest'] in page and 'data:image/png;base64,' in page
  assert not re.search(r'(src|href)="(?!data:)', page)
  # Another pair does not overwrite it, nor does a saved file instead of a network.
  code, report, other = run(tmp_path, base='tiny_gpt2:1', suspect='tiny_gpt2:2')
  assert (code, report['verdict']) == (5, 'unrelated') and other != folder
  saved = [str(path) for path in sorted((tmp_path / 'signatures').glob('*.safetensors'))]
  assert len(saved) == 2
  for pair in (saved, saved[::-1], (saved[0], 'tiny_gpt2:3')):
    code, again, _ = run(tmp_path, *pair)
    assert (code, again['verdict']) == (5, 'unrelated')
    assert [row['reason'] for row in again['tests']] == [None] * len(report['tests'])


def test_a_test_without_a_result_has_its_reason_instead(tmp_path, capsys):
  code, report, folder = run(tmp_path, 'tiny_gpt2:1', 'tiny_llama2:2')
  assert (code, report['verdict']) == (3, 'inconclusive')
  printed, page = capsys.readouterr().out, (folder / 'report.html').read_text()
  missing = [row for row in report['tests'] if row['reason']]
  assert {row['test'] for row in missing} >= {'unit order', 'unit order, fitted basis'}
  for row in missing:
    assert f'{row["test"]}: no result, as {row["reason"]}' in ' '.join(printed.split())
    assert f'no result, as {row["reason"]}' in page
  assert page.count('≤') == sum(row['p_value'] is not None for row in report['tests']) + 1


def test_a_saved_signature_keeps_its_probe(tmp_path):
  run(tmp_path, 'tiny_gpt2:1', 'tiny_gpt2:2')
  saved = next((tmp_path / 'signatures').glob('*.safetensors'))
  code, report, _ = run(tmp_path, str(saved), 'tiny_gpt2:3', num_sequences='300')
  assert (code, report['sequences']) == (5, 1000)


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
  report = {'verdict': 'inconclusive', 'reasons': ['<b>'], 'settings': {}, 'environment': {},
            'tests': [], 'caveats': [], 'shared_tensors': [], 'p_value': None, 'alpha': 1e-4,
            'base': {'name': '<script>alert(1)</script>'}, 'suspect': {'name': 'b'}}
  page = verdict_page.render(report, b'')
  assert '<script>' not in page and '&lt;b&gt;' in page
