"""The program that judges a pair: words and flags, exit codes, files, and mistakes."""

import json
import re

import pytest

from bornbiased_jax.errors import InputError
from experiments import seedprint
from experiments.shared import verdict_page
from experiments.shared.command_line import resolve


def settings(*words, **given):
  made = resolve(seedprint.SCALES, 'laptop', seedprint.SETTINGS,
                 **dict(num_sequences='1000', length='4') | given)
  made.words = list(words)
  return made


def run(output_dir, *words, **given):
  """Exit code, report and folder of a run."""
  before = set(output_dir.glob('*/results.json'))
  with pytest.raises(SystemExit) as stop:
    seedprint.main(settings(*words, **given), output_dir)
  path, = set(output_dir.glob('*/results.json')) - before
  return stop.value.code, json.loads(path.read_text()), path.parent


def test_verdicts_exit_codes_and_files(tmp_path, capsys):
  code, report, folder = run(tmp_path, 'tiny_gpt2:1', 'tiny_gpt2:1')
  assert (code, report['verdict'], report['schema']) == (0, 'related', 2)
  assert report['run'].keys() == {'command', 'commit', 'started', 'seconds'}
  assert capsys.readouterr().out.startswith('RELATED: tiny_gpt2:1 and tiny_gpt2:1')
  assert 'copy of the other' in ' '.join(report['reasons'])
  assert (folder / 'figure.png').stat().st_size > 10_000
  page = (folder / 'report.html').read_text()
  for row in report['witnesses']:
    assert f'<td>{row["witness"]}</td>' in page
  assert report['base']['digest'] in page and 'data:image/png;base64,' in page
  assert not re.search(r'(src|href)="(?!data:)', page)
  # Another pair does not overwrite it, nor does a saved file instead of a network.
  code, report, other = run(tmp_path, base='tiny_gpt2:1', suspect='tiny_gpt2:2')
  assert (code, report['verdict']) == (5, 'unrelated') and other != folder
  saved = [str(path) for path in sorted((tmp_path / 'dossiers').glob('*.npz'))]
  for pair in (saved, saved[::-1]):
    code, report, _ = run(tmp_path, *pair)
    assert code == 5 and len(report['witnesses']) == 5
  code, report, _ = run(tmp_path, 'tiny_gpt2:1', 'nano_gpt2:1')
  assert (code, report['verdict']) == (4, 'not comparable')
  assert '128 and 768 residual channels' in report['reasons'][0]
  assert len(saved) == len(list((tmp_path / 'dossiers').glob('*.npz')))


def test_words_take_the_place_of_the_scales_networks():
  made = resolve(seedprint.SCALES, 'smoke', seedprint.SETTINGS)
  seedprint.name_pair(made)
  assert (made.base, made.suspect) == ('tiny_gpt2:1', 'tiny_gpt2:2')
  made.words = ['a', 'b']
  seedprint.name_pair(made)
  assert (made.base, made.suspect) == ('a', 'b')
  made = resolve(seedprint.SCALES, 'smoke', seedprint.SETTINGS)
  made.words = ['a']
  with pytest.raises(InputError, match='--suspect: is missing'):
    seedprint.name_pair(made)


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


def test_names_from_strangers_stay_text():
  report = {'verdict': 'not comparable', 'reasons': ['<b>'], 'settings': {}, 'environment': {},
            'base': {'name': '<script>alert(1)</script>'}, 'suspect': {'name': 'b'}}
  page = verdict_page.render(report, b'')
  assert '<script>' not in page and '&lt;b&gt;' in page
