"""The program that compares the networks of a folder, and its page."""

import csv
import dataclasses
from html.parser import HTMLParser
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs, plotting, storage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.lineage import compare_networks, signature, thresholds
from bornbiased_jax.lineage.evidence.by_weights import Weights
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import huggingface
from directories import lay
from experiments.lineage import __main__ as lineage
from experiments.lineage import folders, pairs, picture, summary
from experiments.lineage.folders import Finder
from experiments.seedprint import __main__ as seedprint
from experiments.shared import verdicts
from experiments.shared.settings import resolve
from small_networks import born, save_run, trained

RANDOM = 'tiny_gpt2,num_layers=3,mlp_width=64:1'
ORDER = ['a@0', 'b@0', 'c@0', 'ama', '4:1']
CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)


@pytest.fixture(scope='module')
def zoo(tmp_path_factory):
  """Two networks that are the same, another one, one of another family, and a folder of none."""
  folder = tmp_path_factory.mktemp('zoo')
  for name, seed in (('a', 1), ('b', 1), ('c', 2)):
    save_run(folder / name, 0, CONFIG, trained(CONFIG, seed))
  llama = configs.get('tiny_llama2', num_layers=3, mlp_width=64, vocab_size=50)
  huggingface.save(folder / 'llama', llama, init_params(llama, 1))
  lay(folder, 'odd')
  return folder


def settings(*networks, **given):
  words = list(map(str, networks))
  return resolve(lineage.Settings, 'smoke', words, **dict(num_sequences='1000') | given)


@pytest.mark.parametrize('changed, is_kept', [({'suspect': 'x'}, True), ({'strict': True}, False)])
def test_a_report_of_other_networks_is_kept(changed, is_kept, tmp_path, capsys):
  before = {'settings': {'networks': ['zoo'], 'suspect': None, 'strict': False},
            'run': {'started': '2026-01-02T03:04:05+00:00'}}
  (tmp_path / 'results.json').write_text(json.dumps(before))
  for name in ('report.html', 'figure.png'):
    (tmp_path / name).touch()
  lineage.keep_earlier({'settings': before['settings'] | changed}, tmp_path)
  kept = tmp_path / 'report_of_2026_01_02_03_04_05_00_00'
  assert kept.exists() == is_kept and (str(kept) in capsys.readouterr().err) == is_kept
  place = kept if is_kept else tmp_path
  assert sorted(path.name for path in place.iterdir()) == [
      'figure.png', 'report.html', 'results.json']
  assert json.loads((place / 'results.json').read_text()) == before


def run(output_dir, *networks, **given):
  """Exit code and results of a run."""
  with pytest.raises(SystemExit) as stop:
    lineage.main(settings(*networks, **given), output_dir)
  return stop.value.code, json.loads((output_dir / 'results.json').read_text())


@pytest.mark.slow
def test_the_zoo_is_compared_pair_by_pair(zoo, tmp_path, capsys):
  code, content = run(tmp_path / 'out', zoo, RANDOM)
  assert code == 0
  verdicts = {tuple(sorted((row['base'][-3:], row['suspect'][-3:]), key=ORDER.index)):
              row['verdict'] for row in content['rows']}
  small = {'a@0', 'b@0', 'c@0'}
  assert verdicts == {
      ('a@0', 'b@0'): 'related', ('a@0', 'c@0'): 'unrelated', ('b@0', 'c@0'): 'unrelated',
      # Of other families, depths or widths no test of units applies.
      **{(name, '4:1'): 'inconclusive' for name in small},
      **{(name, 'ama'): 'inconclusive' for name in small},
      # Another family with another vocabulary, but drawn from the same seed by the same code.
      ('ama', '4:1'): 'related'}
  assert [each['name'] for each in content['about']] == content['networks']
  assert content['run'].keys() == {'command', 'commit', 'processor', 'started', 'seconds'}
  assert content['run']['seconds'] > 0
  printed = capsys.readouterr()
  assert '5 models were compared' in printed.out
  *lines, _ = printed.out.splitlines()
  assert max(map(len, lines)) <= 100 and not any(str(zoo) in line for line in lines)
  left, = content['left_out']
  assert left['name'] == f'{zoo}/odd' and f'left out: {left["reason"]}' in printed.err
  assert 'models to read' in printed.err and 'pairs to compare: about' in printed.err
  assert_page_has_all(tmp_path / 'out', content)
  lines = (tmp_path / 'out' / 'matrix.csv').read_text().splitlines()
  table = np.array(list(csv.reader(lines)))
  assert table.shape == (6, 6)
  place = {name: i for i, name in enumerate(table[0])}
  a, b, c = (next(i for name, i in place.items() if name.endswith(each)) for each in sorted(small))
  assert table[a, a] == 'itself' and float(table[a, b]) == float(table[b, a]) > 5
  assert float(table[a, c]) < 4 and float(table[a, place[RANDOM]]) < 4
  assert (tmp_path / 'out' / 'figure.png').exists()
  rows = {row['base'][-3:] + row['suspect'][-3:]: row for row in content['rows']}
  assert rows['a@0b@0']['corrected_p_value'] >= rows['a@0b@0']['p_value']
  # The same command again: the same but for the time; what was read is not read again.
  code, again = run(tmp_path / 'out', zoo, RANDOM, strict=True)
  assert code == 4
  assert {**again, 'run': 0, 'settings': 0} == {**content, 'run': 0, 'settings': 0}


class Text(HTMLParser):
  """The text of a page, and whatever its tags point at."""

  def __init__(self, page):
    super().__init__()
    self.texts, self.links, self.tags = [], [], set()
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self.links += [value for name, value in attrs if name in ('src', 'href')]

  def handle_data(self, data):
    self.texts.append(data)


def assert_page_has_all(folder, content):
  page = Text((folder / 'report.html').read_text())
  text = ' '.join(''.join(page.texts).split())
  beside = {each for each in page.links if each[0] != '#'}
  assert beside == {'results.json', 'matrix.csv', 'figure.png'}
  assert not page.tags & {'link', 'iframe'}
  for each in content['about']:
    assert each['name'] in text and each['digest'] in text and each['type'] in text
    assert f'{each["parameters"]:,}' in text
  for each in content['left_out']:
    assert each['name'] in text and each['reason'] in text
  for row in content['rows']:
    assert all(sentence in text for sentence in row['reasons'] + row['caveats'])
  for sentence in content['summary']:
    assert sentence in text
  for known in (content['run']['commit'], content['run']['started'], content['environment']['jax']):
    assert known in text


def fields(row):
  """What must be the same whichever way a pair is judged."""
  tests = [{name: each[name] for name in ('test', 'z', 'p_value', 'statistic', 'reason')}
           for each in row['tests']]
  return row['p_value'], row['reasons'], row['caveats'], tests


@pytest.fixture(scope='module')
def kinds(tmp_path_factory):
  """One network, and by kind: copy, unrelated, cut, of another family."""
  folder = tmp_path_factory.mktemp('kinds')
  config, params = CONFIG, trained(CONFIG)
  save = lambda name, *network: huggingface.save(folder / name, *network)
  save('z', config, params)
  save('copy', config, params)
  save('unrelated', config, trained(config, 2))
  # One network of fewer ids does not change what the others read, nor their z.
  smaller = dataclasses.replace(config, vocab_size=40)
  save('cut', smaller, params | {'embedding': params['embedding'][:40]})
  llama = configs.get('tiny_llama2', num_layers=2, num_heads=2, width=32, mlp_width=64,
                      vocab_size=50)
  save('family', llama, trained(llama, 9))
  return folder


@pytest.mark.slow
def test_a_pair_has_the_same_z_p_and_reasons_whoever_judges_it(kinds, tmp_path, monkeypatch):
  monkeypatch.setattr(seedprint.picture, 'draw', lambda report: plotting.figure(1, 1))
  suspect = str(kinds / 'z')
  all_pairs = run(tmp_path / 'all', kinds)[1]['rows']
  content = run(tmp_path / 'one', kinds, suspect=f'{kinds}/../{kinds.name}/z')[1]
  against_all = content['rows']
  # A suspect is not compared with itself, whatever its name.
  assert content['settings']['suspect'] == suspect
  assert {row['suspect'] for row in against_all} == {suspect}
  assert suspect not in {row['base'] for row in against_all}
  by_pair = {frozenset((row['base'], row['suspect'])): row for row in all_pairs}
  assert len(all_pairs) == 10 and len(against_all) == 4
  seen = set()
  for one in against_all:
    words = (one['base'], suspect)
    row = by_pair[frozenset(words)]
    ways = [compare_networks(*pair, Probe('tokens', 1000, 4))
            for pair in {words, (row['base'], row['suspect'])}]
    with pytest.raises(SystemExit) as stop:
      seedprint.main(resolve(seedprint.Settings, 'smoke', words), tmp_path / 'pairs')
    path = tmp_path / 'pairs' / seedprint.folder_name(
        resolve(seedprint.Settings, 'smoke', base=words[0], suspect=words[1]))
    by_seedprint = json.loads((path / 'results.json').read_text())
    assert stop.value.code == verdicts.EXIT_CODES[one['alone']]
    assert fields(one) == fields(by_seedprint)
    assert fields(one) in [fields(way) for way in ways]
    assert fields(row) in [fields(way) for way in ways]
    for each in (one, row):
      assert each['alone'] == by_seedprint['verdict']
      assert each['verdict'] in (each['alone'], 'inconclusive')
    seen.add(one['alone'])
  assert seen == {'related', 'unrelated', 'inconclusive'}


@pytest.mark.slow
def test_a_saved_signature_stands_for_its_network_and_brings_the_probe(zoo, tmp_path):
  probe = Probe('tokens', 1000, 3)
  (tmp_path / 'saved').mkdir()
  signature(str(zoo / 'a'), probe).save(tmp_path / 'saved' / 'a.safetensors')
  (tmp_path / 'saved' / 'broken.safetensors').write_bytes(b'nothing')
  _, content = run(tmp_path / 'out', tmp_path / 'saved', zoo / 'b', zoo / 'c')
  verdicts = {(Path(row['base']).name, Path(row['suspect']).name): row['verdict']
              for row in content['rows']}
  assert verdicts == {('a.safetensors', 'b@0'): 'related', ('a.safetensors', 'c@0'): 'unrelated',
                      ('b@0', 'c@0'): 'unrelated'}
  # Hidden states can be compared, as others read what the saved one has read.
  for row in content['rows']:
    assert row['probe']['length'] == (3 if row['base'].endswith('.safetensors') else 4)
    assert all(test['reason'] is None for test in row['tests'] if test['test'] == 'SeedPrint')


def test_what_a_folder_holds_and_cannot_be_read_is_named(zoo, tmp_path, capsys):
  for name, file in (('empty', None), ('alone', 'model.safetensors'), ('pickled', 'old.pth'),
                     ('llama', 'llama.gguf'), ('adapter', 'adapter_config.json'), ('log', 'a.txt'),
                     ('.', 'stray.pt')):
    (tmp_path / 'zoo' / name).mkdir(parents=True, exist_ok=True)
    if file:
      (tmp_path / 'zoo' / name / file).write_text('{"base_model_name_or_path": "nowhere"}')
  given = [str(tmp_path / 'zoo'), f'{zoo}/a@0', f'{zoo}/b@0']
  (tmp_path / 'zoo' / 'self').symlink_to('self')
  finder, known = lineage.find(settings(*given), tmp_path / 'out', Probe('tokens', 1000, 4))
  assert list(known) == [f'{zoo}/a@0', f'{zoo}/b@0']
  reasons = {each['name'].removeprefix(str(tmp_path)): each['reason'] for each in finder.left_out}
  assert set(reasons) == {f'/zoo/{name}' for name in (
      'adapter', 'alone', 'empty', 'llama/llama.gguf', 'log', 'pickled', 'self', 'stray.pt')}
  assert 'give the base yourself' in reasons['/zoo/adapter']
  assert 'config.json' in reasons['/zoo/alone'] and 'config.json' in reasons['/zoo/pickled']
  said = capsys.readouterr().err
  assert all(f'left out: {reason}\n' in said for reason in reasons.values())


# What lies in a folder (MODEL*, LINK>PLACE), which is asked for, what is found, and what left out.
LAYOUTS = [
    # A run in a folder stands for its latest checkpoint, and one that is named for all.
    ('zoo/run/0 zoo/run/10 zoo/run/9 zoo/other*', 'zoo', 'zoo/other zoo/run@10', ''),
    ('zoo/run/0 zoo/run/10 zoo/run/9', 'zoo/run/', 'zoo/run@0 zoo/run@9 zoo/run@10', ''),
    # A number may name a network, such as of a seed; beside a checkpoint it makes the folder a run.
    ('zoo/1/100 zoo/2*', 'zoo', 'zoo/1@100 zoo/2', ''),
    ('zoo/1/100 zoo/2* zoo/3', 'zoo', 'zoo@3', 'zoo/1 zoo/2'),
    # Networks lie below folders named by numbers.
    ('zoo/2024/one* zoo/2025/two*', 'zoo', 'zoo/2024/one zoo/2025/two', ''),
    ('zoo/000500/pretrained_model* zoo/001000/pretrained_model*', 'zoo',
     'zoo/000500/pretrained_model zoo/001000/pretrained_model', ''),
    ('zoo/global_step_5/actor/huggingface* zoo/global_step_10/actor/huggingface*', 'zoo',
     'zoo/global_step_10/actor/huggingface zoo/global_step_5/actor/huggingface', ''),
    # A link back to the folder is not followed, nor are two that lead to each other.
    ('zoo/one* zoo/loop>zoo zoo/two>zoo/one zoo/x zoo/y zoo/x/link>zoo/y zoo/y/link>zoo/x', 'zoo',
     'zoo/one zoo/two', 'zoo/loop zoo/x/link/link zoo/y'),
]


@pytest.mark.parametrize('laid, asked, found, left_out', LAYOUTS)
def test_what_a_folder_holds_is_found(laid, asked, found, left_out, tmp_path):
  for entry in laid.split():
    name, _, place = entry.partition('>')
    if place:
      (tmp_path / name).symlink_to(tmp_path / place)
    elif name.endswith('*'):
      lay(tmp_path, name.removesuffix('*'))
    else:
      (tmp_path / name).mkdir(parents=True)
  finder = Finder([], tmp_path / 'out')
  named = lambda names: [f'{tmp_path}/{name}' for name in names.split()]
  assert finder.expand(f'{tmp_path}/{asked}') == named(found)
  assert [each['name'] for each in finder.left_out] == named(left_out)


@pytest.mark.parametrize('is_model', [False, True])
def test_a_fan_of_links_is_read_once(is_model, tmp_path):
  """Its paths double with each level."""
  for i in range(20):
    (tmp_path / f'd{i:02}').mkdir()
    if is_model or i == 19:
      (tmp_path / f'd{i:02}' / 'config.json').write_text('{}')
    for name in ('left', 'right') if i else ():
      (tmp_path / f'd{i - 1:02}' / name).symlink_to(tmp_path / f'd{i:02}')
  finder = Finder([], tmp_path / 'out')
  found = finder.expand(str(tmp_path))
  assert {Path(name).resolve().name for name in found} == {
      f'd{i:02}' for i in range(0 if is_model else 19, 20)}
  assert len(found) + len(finder.left_out) <= 60


def test_folders_are_read_to_a_depth_and_a_number(tmp_path, monkeypatch):
  (tmp_path / Path(*['n'] * 250)).mkdir(parents=True)
  finder = Finder([], tmp_path / 'out')
  assert finder.expand(str(tmp_path)) == []
  assert [each['name'] for each in finder.left_out] == [str(tmp_path / Path(*['n'] * 31))]
  lay(tmp_path, *(f'{i}net' for i in range(9)))
  monkeypatch.setattr(folders, '_MOST_FOLDERS', 5)
  assert len(finder.expand(str(tmp_path))) == 5
  assert finder.left_out[1:] == [
      {'name': f'{tmp_path}/5net',
       'reason': f'{tmp_path}/5net and what follows were not read, after 5 folders'}]


def test_a_pair_that_cannot_be_compared_is_left_out(tmp_path):
  probe = Probe('tokens', 1000, 4)
  known = {name: signature((CONFIG, born(CONFIG, seed)), probe) for seed, name in enumerate('abc')}
  known['c'] = dataclasses.replace(known['c'], features=None)
  todo, finder = lineage.pairs_of(known, None), Finder([], tmp_path)
  taken = {name: dict.fromkeys(reads, known[name])
           for name, reads in lineage.probes_of(todo, known, probe).items()}
  rows = lineage.judge_all(todo, known, probe, taken, finder)
  assert [(row['base'], row['suspect']) for row in rows] == [('a', 'b')]
  assert [each['name'] for each in finder.left_out] == ['a and c', 'b and c']


class Panic(BaseException):
  """As of a library in Rust, which is no Exception."""


@pytest.mark.parametrize('error', [Panic('a\u202eb'), MemoryError(), IndexError()])
def test_one_bad_file_ends_no_comparison(error, tmp_path, capsys):
  def call(name):
    if name == 'bad':
      raise error
    return name
  finder = Finder(['c'], tmp_path)
  assert finder.of_each(['a', 'bad', 'c'], call) == {'a': 'a', 'c': 'c'}
  assert finder.left_out[0]['name'] == 'bad'
  assert type(error).__name__ in finder.left_out[0]['reason']
  assert '\u202e' not in capsys.readouterr().err
  for stop in (KeyboardInterrupt(), SystemExit()):
    error = stop
    with pytest.raises(type(stop)):
      finder.of_each(['a', 'bad', 'c'], call)


def row(verdict, p_value, z=0.0, identical=False, **more):
  return {'base': 'a', 'suspect': 'b', 'verdict': verdict, 'p_value': p_value, 'z': z,
          'likeness': 0.5, 'identical': identical, 'agree': [], 'reasons': ['Why.'], 'caveats': [],
          'tests': [], 'bounds': []} | more


def test_one_related_pair_among_many_survives_the_correction():
  some = lambda p_value: [row('related', p_value, 9.0)] + [
      row('unrelated', each) for each in np.linspace(0.1, 1, 500)]
  strong, weak = some(1e-6), some(1e-4)
  for rows in (strong, weak):
    pairs.correct(rows)
    # What a pair is by itself stays; its verdict never gets stronger.
    assert [each['alone'] for each in rows] == ['related'] + ['unrelated'] * 500
    assert {each['verdict'] for each in rows[1:]} == {'unrelated'}
    assert rows[0]['reasons'] == ['Why.']
  assert strong[0]['verdict'] == 'related' and strong[0]['corrected_p_value'] < 0.01
  assert weak[0]['verdict'] == 'inconclusive' and 'Among 501 pairs' in weak[0]['correction']


@pytest.mark.parametrize('num_pairs', [1, 30, 1000])
def test_a_p_value_that_passes_the_correction_for_certain(num_pairs):
  alpha = pairs.alpha_of(num_pairs)
  rows = [row('related', 0.999 * alpha)]
  rows += [row('unrelated', 1.0) for _ in range(num_pairs - 1)]
  pairs.correct(rows)
  assert rows[0]['verdict'] == 'related'
  if alpha < 1e-4:  # Not smaller than it needs to be.
    rows[0] |= {'p_value': 1.01 * alpha, 'bounds': []}
    for each in rows[1:]:
      each['bounds'] = []
    pairs.correct(rows)
    assert rows[0]['verdict'] == 'inconclusive'


def test_a_copy_is_related_among_any_number():
  rows = [row('related', 0.04, 5.0, identical=True)]
  rows += [row('unrelated', each) for each in np.linspace(0.1, 1, 50)]
  pairs.correct(rows)
  assert rows[0]['verdict'] == 'related'


def test_no_more_is_detectable_among_many_pairs_than_in_one():
  bounds = [['units', 0.0, 0.01], ['units', 0.0, 0.02], ['values', 0.01, 0.01]]
  alone, many = (pairs.detectable(bounds, pairs.alpha_of(count)) for count in (1, 1000))
  assert alone < many < 2 * alone
  # 'related' needs what Chernoff's bound asks for, which is more than the normal law's z.
  assert math.isclose(alone, 0.01 + (thresholds.related_z(4) + stats.norm.isf(0.05)) * 0.01)
  # The value test alone decides here: of the units the better test counts.
  assert math.isclose(alone - pairs.detectable(bounds[:2] + [['values', 0.0, 0.01]], 1e-4), 0.01)
  assert pairs.detectable(bounds[:2], 1e-4) is None


def test_groups_are_chains_of_related_pairs():
  named = [('a', 'b', 'related', 0.5), ('b', 'd', 'related', 0.9), ('a', 'd', 'inconclusive', 0.2),
           ('a', 'c', 'unrelated', 0), ('b', 'c', 'unrelated', 0), ('c', 'd', 'unrelated', 0)]
  rows = [row(verdict, 0.5, base=base, suspect=suspect, likeness=likeness)
          for base, suspect, verdict, likeness in named]
  assert pairs.groups('abcd', rows) == [['a', 'b', 'd']]
  assert pairs.closest('b', rows) == ('d', rows[1]) and pairs.closest('c', rows) is None
  said = summary.sentences(dict(zip('abcd', 'abcd', strict=True)), rows, [], None)
  assert said[0] == 'a, b and d have a common origin, each with at least one other of them.'
  distance = dict(zip(('ab', 'ac', 'ad', 'bc', 'bd', 'cd'),
                      picture.distances(list('abcd'), rows), strict=True))
  assert distance['bd'] < distance['ab'] < distance['ad'] == distance['ac'] == 1


def test_what_agrees_in_part_is_not_cleared():
  rows = [row('inconclusive', 1e-9, suspect='b', agree=['value order']),
          row('inconclusive', 1.0, suspect='c'),
          row('related', 1e-9, suspect='d', likeness=0.999),
          row('related', 1e-9, suspect='e', identical=True, caveats=['Other settings.'])]
  label = dict(zip('abcde', 'ABCDE', strict=True))
  said = summary.sentences(label, rows, [], None)
  assert said[1] == 'E holds the same numbers as A. Their configurations differ.'
  assert 'agrees in something' in said[3] and said[3].count('A and B') == 1
  of = lambda name, suspect=None, rows=rows: summary.closest_text(name, rows, label, suspect)
  assert of('a') == 'E (the same numbers)' and of('d') == 'A (likeness > 0.99)'
  assert of('b') == 'not shown, but it agrees in part with A' and of('c') == 'none found'
  assert of('c', 'a') == 'not A; others not compared'


def test_the_strongest_verdict_is_the_exit_code():
  code = lambda *verdicts: lineage.exit_code([row(each, 1.0) for each in verdicts], [])
  assert code('unrelated', 'inconclusive', 'related') == 0
  assert code('unrelated', 'inconclusive') == 3 and code('unrelated', 'unrelated') == 5


def test_the_cost_that_is_said_is_what_was_measured():
  """On two CPU cores at 200 GFLOP/s, in minutes."""
  probe = Probe('pairs', 2000, 64)
  minutes = {'nano_gpt2': (2, 10 / 60), 'gpt2_1b2': (25, 3), 'llama2_7b': (2.3 * 60, 20)}
  for name, (to_read, to_compare) in minutes.items():
    config, model = configs.get(name), storage.open(f'{name}:0')
    assert math.isclose(verdicts.reading_seconds(model, probe, 2e11) / 60, to_read, rel_tol=0.25)
    assert math.isclose(verdicts.pair_seconds(config, config, 2e11) / 60, to_compare, rel_tol=0.25)
  weights = OfWeights('any', 'transformers', 'any')
  assert 40 < verdicts.reading_seconds(weights, probe, 2e11) < 70  # In seconds.


class OfWeights(Weights):
  """A model of 7 billion parameters that is read by names."""

  num_parameters = 6_738_000_000


def test_a_folder_hides_no_network(tmp_path):
  """Named as caches are, as checkpoints beside their model, and a file in capitals."""
  lay(tmp_path, 'signatures', 'plain', 'plain/checkpoint-5', 'x/hidden_states/y')
  (tmp_path / 'hidden_states').mkdir()
  odd = ['other\nrelated', 'line\u2028separator', 'plain/\u202edetaler']
  lay(tmp_path, *odd)
  (tmp_path / 'M.GGUF').write_bytes(b'')
  finder = Finder([str(tmp_path)], tmp_path / 'out')
  assert finder.expand(str(tmp_path)) == [str(tmp_path / name) for name in (
      'plain', 'plain/checkpoint-5', 'signatures', 'x/hidden_states/y', 'M.GGUF')]
  assert {each['name'] for each in finder.left_out} == {
      ascii(name.removeprefix('plain/')) for name in odd}


@pytest.mark.parametrize('verdicts_of, answer', [
    (['unrelated'] * 3, (
        'unrelated', 'No common origin was found between any two of these 3 models.')),
    (['unrelated', 'inconclusive', 'unrelated'], (
        'inconclusive', 'No common origin is shown, and for 1 pair of 3 it is not excluded.')),
    (['unrelated', 'related', 'unrelated'], ('related', 'C has a common origin with A.'))])
def test_the_answer_comes_first(verdicts_of, answer):
  label = dict(zip('abc', 'ABC', strict=True))
  rows = [row(verdict, 0.5, base=base, suspect=suspect) for verdict, (base, suspect) in zip(
      verdicts_of, ('ab', 'ac', 'bc'), strict=True)]
  assert summary.answers(label, rows, None) == [answer]
  assert summary.sentences(label, rows, [], None)[0] == answer[1]


def test_the_answer_on_a_suspect_names_whom_it_was_compared_with():
  label = dict(zip('abc', 'ABC', strict=True))
  of = lambda *found: summary.answers(label, [
      row(verdict, 0.5, base=base, suspect='c')
      for base, verdict in zip('ab', found, strict=True)], 'c')
  assert of('related', 'related') == [('related', 'C has a common origin with A and B.')]
  assert of('related', 'unrelated') == [('related', 'C has a common origin with A.')]
  assert of('unrelated', 'inconclusive') == [
      ('inconclusive', 'Whether C has a common origin with B is not shown.')]
  assert of('unrelated', 'unrelated') == [
      ('unrelated', 'No common origin of C with A and B was found.')]


@pytest.mark.parametrize('positions', configs.POSITIONS)
def test_every_architecture_is_described(positions):
  assert verdicts.describe(configs.get('tiny_gpt2', positions=positions))['parameters'] > 0


def test_a_name_that_is_no_text_is_shown(tmp_path):
  name = bytes([255, 254]).decode(errors='surrogateescape')
  row = {'base': name, 'suspect': 'b', 'z': 1.0}
  lineage.write_matrix(tmp_path / 'matrix.csv', [name, 'b'], [row])
  assert b'udcff' in (tmp_path / 'matrix.csv').read_bytes()
  verdicts.labels([{'name': name}, {'name': 'b'}])[0].encode()
