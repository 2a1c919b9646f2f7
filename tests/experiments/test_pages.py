"""Pages show the stored tables, notice a number that is not stored, and are short."""

import json
import re
import shutil

import pytest

from bornbiased_jax import storage
from bornbiased_jax.lineage.comparison.every_test import TESTS
from experiments import pages

ROOT = pages.HERE.parent
PAGES = [ROOT / 'README.md', pages.HERE / 'README.md', *sorted(pages.MEASURED.glob('*/README.md'))]


@pytest.mark.slow
def test_pages_agree_with_what_is_stored():
  before = [path.stat().st_mtime_ns for path in PAGES]
  pages.main(pages.Settings('laptop', check=True))
  assert [path.stat().st_mtime_ns for path in PAGES] == before


@pytest.fixture
def copy(tmp_path, monkeypatch):
  """The folder of one result, with a page of its own, apart from the repository."""
  measured = tmp_path / 'experiments' / 'measured'
  folder = shutil.copytree(pages.MEASURED / 'calibrate_trained', measured / 'calibrate_trained')
  (measured / 'calibrate').mkdir()
  (folder / 'README.md').write_text(
      '# The published t-test calls 25.8 % of unrelated pairs related\n\n'
      'It reads tokens, and the U test calls 8.9 % related ([more](../calibrate)).\n\n'
      '<!-- table.md -->\n<!-- end -->\n')
  monkeypatch.setattr(pages, 'HERE', measured.parent)
  monkeypatch.setattr(pages, 'MEASURED', measured)
  pages.update(folder, check=False)
  pages.table.cache_clear()
  pages.numbers.cache_clear()
  yield folder
  pages.table.cache_clear()
  pages.numbers.cache_clear()


def found(folder):
  return pages.update(folder, check=True) + pages.problems(folder / 'README.md')


def test_a_page_as_it_is_has_no_problems(copy):
  assert found(copy) == []
  assert (copy / 'table.md').read_text() in (copy / 'README.md').read_text()


def test_the_list_of_results_says_what_measured_them(copy):
  content = json.loads((copy / 'results.json').read_text())
  listed = pages.origins()
  assert content['run']['commit'] in listed and '(calibrate_trained)' in listed
  assert f'{content["run"]["seconds"] / 60:.1f}' in listed
  assert pages.put({pages.MEASURED / 'README.md': listed}, check=True)  # It is not there yet.
  assert not pages.put({pages.MEASURED / 'README.md': listed}, check=False)
  assert not pages.put({pages.MEASURED / 'README.md': pages.origins()}, check=True)


def test_a_changed_result_is_noticed_by_table_page_and_text(copy):
  path = copy / 'results.json'
  content = json.loads(path.read_text())
  content['summary'][1]['published_t_0.01'] += 0.1
  path.write_text(json.dumps(content))
  problems = ' '.join(found(copy))
  assert 'table.md: its table is not that of results.json' in problems
  assert 'README.md: its table is not that of results.json' in problems
  assert 'README.md: 25.8 is in no result of its folder' in problems


@pytest.mark.parametrize('before, after, problem', [
    ('25.8 %', '25.9 %', '25.9 is in no result of its folder'),
    ('8.9 %', '9.8 %', '9.8 is in no result of its folder'),
    ('](../calibrate)', '](../calibrated)', 'there is no ../calibrated'),
    ('reads tokens', 'reads 0.123 of tokens', '0.123 is in no result of its folder'),
    ('It reads', '<!-- not from results.json: 7.5 (the paper) -->\nIt reads', '7.5 is listed'),
])
def test_a_changed_page_is_noticed(copy, before, after, problem):
  page = copy / 'README.md'
  assert before in page.read_text()
  page.write_text(page.read_text().replace(before, after))
  assert problem in ' '.join(found(copy))


def test_a_number_may_be_listed(copy):
  page = copy / 'README.md'
  page.write_text(page.read_text() +
                  'The paper has 0.123.\n\n<!-- not from results.json: 0.123 (paper) -->\n')
  assert found(copy) == []


@pytest.mark.parametrize('text, stored, is_stored', [
    ('4.7 ± 0.5 %', [0.0472, 0.0049], True), ('4.7 ± 0.5 %', [0.0472, 0.0056], False),
    ('4.7 ± 0.5 %', [[0.0472], [0.0049]], False),
    ('between 45–65 %', [0.447, 0.65], True), ('−0.30', [0.3], False), ('0.30 lower', [-0.3], True),
    ('5.6e-4', [5.62e-4], True), ('1,234.5', [1234.46], True), ('1.8 GiB', [1.76 * 2**30], True),
    ('version 0.10.2 and 2602.05927v1', [], True), ('at T = 16, 5.8 %', [0.058], True),
])
def test_how_a_number_is_compared(tmp_path, monkeypatch, text, stored, is_stored):
  monkeypatch.setattr(pages, 'numbers', lambda folder: [
      pages.np.array(row, float) for row in (stored if stored and isinstance(stored[0], list)
                                             else [stored])])
  assert (pages.unknown(tmp_path, text) == []) == is_stored


def test_pages_are_short_and_every_result_is_on_one():
  texts = {path: path.read_text() for path in PAGES}
  index, read = texts[PAGES[1]], {path: text.partition('<details>') for path, text in texts.items()}
  assert words(texts[PAGES[0]]) <= 700
  limits = {path: 200 if path in PAGES[:2] else 80 for path in PAGES}
  assert [path for path in PAGES if len(read[path][0].splitlines()) > limits[path]] == []
  assert [path for path in PAGES[2:] if f'(measured/{path.parent.name})' not in index] == []
  assert [path for path in PAGES[2:] if read[path][1] and words(read[path][0]) > 500] == []
  # A variant has no page: another one has its line, among all data.
  assert {path.parent for path in PAGES[2:]}.union(
      *(pages.linked(path.parent, read[path][2]) for path in PAGES[2:])) == {
          folder for folder in pages.MEASURED.iterdir() if folder.is_dir()}


def words(text):
  """How many words and numbers one reads, apart from commands and addresses."""
  text = re.sub(r'```.*?```|<!--.*?-->|\]\(.*?\)', ' ', text, flags=re.DOTALL)
  return sum(any(letter.isalnum() for letter in word) for word in text.split())


@pytest.mark.slow
def test_the_first_python_of_readme_runs(capsys):
  code = re.search(r'```python\n(.*?)```', PAGES[0].read_text(), re.DOTALL)[1]
  for size, smaller in {'=1000': '=300', '64': '4'}.items():
    assert size in code
    code = code.replace(size, smaller)
  exec(compile(code, 'README.md', 'exec'), {})  # noqa: S102
  *lines, cosines = capsys.readouterr().out.splitlines()
  shares = [float(line.split()[2]) for line in lines]
  assert len(cosines.split()) == 4  # One by layer.
  # Uniform ids would have a preferred token in about 3 of 300 sequences.
  assert len(shares) == 3 and sum(shares) / 3 > 0.02


def test_the_python_about_an_own_network_runs(tmp_path, monkeypatch):
  page = ROOT / 'docs' / 'howto' / 'models.md'
  code = re.search(r'```python\n(.*?)```', page.read_text(), re.DOTALL)[1]
  monkeypatch.chdir(tmp_path)
  done = {}
  exec(compile(code, page.name, 'exec'), done)  # noqa: S102
  assert done['logits'].shape == (1, len('To be, or'), 2048)
  saved, _ = storage.huggingface.load('results/my_llama')
  assert saved.width == done['config'].width


def test_the_page_of_a_verdict_names_every_test():
  text = (ROOT / 'bornbiased_jax' / 'lineage' / 'README.md').read_text()
  for name, kind in TESTS.items():
    decides = 'yes' if kind.decides else 'no'
    assert f'| {name} | {kind.compares} | {decides} | {kind.misses} |' in text
