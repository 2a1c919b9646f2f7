"""Pages show the stored tables, are short, and their code runs."""

import json
import re
import shutil

import pytest

from bornbiased_jax.lineage.comparison.every_test import TESTS
from experiments import pages

ROOT = pages.HERE.parent
PAGES = [ROOT / 'README.md', pages.HERE / 'README.md', *sorted(pages.MEASURED.glob('*/README.md'))]


@pytest.mark.slow
def test_pages_have_the_tables_of_what_is_stored():
  before = [path.stat().st_mtime_ns for path in PAGES]
  pages.main(pages.Settings('laptop', check=True))
  assert [path.stat().st_mtime_ns for path in PAGES] == before


@pytest.fixture
def copy(tmp_path, monkeypatch):
  """The folder of one result, with a page of its own, apart from the repository."""
  measured = tmp_path / 'experiments' / 'measured'
  folder = shutil.copytree(pages.MEASURED / 'calibrate_trained', measured / 'calibrate_trained')
  (folder / 'README.md').write_text('# A title\n\n<!-- table.md -->\n<!-- end -->\n')
  monkeypatch.setattr(pages, 'HERE', measured.parent)
  monkeypatch.setattr(pages, 'MEASURED', measured)
  pages.table.cache_clear()
  pages.update(folder, check=False)
  yield folder
  pages.table.cache_clear()


def test_the_list_of_results_says_what_measured_them(copy):
  content = json.loads((copy / 'results.json').read_text())
  listed = pages.origins()
  assert content['run']['commit'] in listed and '(calibrate_trained)' in listed
  assert f'{content["run"]["seconds"] / 60:.1f}' in listed
  assert pages.put({pages.MEASURED / 'README.md': listed}, check=True)  # It is not there yet.
  assert not pages.put({pages.MEASURED / 'README.md': listed}, check=False)
  assert not pages.put({pages.MEASURED / 'README.md': pages.origins()}, check=True)


def test_a_changed_result_is_noticed_by_table_and_page(copy):
  assert pages.update(copy, check=True) == []
  assert (copy / 'table.md').read_text() in (copy / 'README.md').read_text()
  path = copy / 'results.json'
  content = json.loads(path.read_text())
  content['summary'][1]['published_t_0.01'] += 0.1
  path.write_text(json.dumps(content))
  pages.table.cache_clear()
  assert len(pages.update(copy, check=True)) == 2


def test_pages_are_short_and_every_result_is_on_one():
  texts = {path: path.read_text() for path in PAGES}
  index, read = texts[PAGES[1]], {path: text.partition('<details>') for path, text in texts.items()}
  assert words(texts[PAGES[0]]) <= 700
  limits = {path: 200 if path in PAGES[:2] else 80 for path in PAGES}
  assert [path for path in PAGES if len(read[path][0].splitlines()) > limits[path]] == []
  assert [path for path in PAGES[2:] if f'(measured/{path.parent.name})' not in index] == []
  assert [path for path in PAGES[2:] if read[path][1] and words(read[path][0]) > 500] == []
  # A variant has no page: another one has its line, among all data.
  folders = {folder for folder in pages.MEASURED.iterdir() if folder.is_dir()}
  shown = {(path.parent / link).resolve() for path in PAGES[2:]
           for link in re.findall(r'\]\(([^)#\s]+)', read[path][2])}
  assert folders <= shown | {path.parent for path in PAGES[2:]}


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
  *lines, cosine = capsys.readouterr().out.splitlines()
  shares = [float(line.split()[2]) for line in lines]
  assert 0.1 < float(cosine) < 0.25
  # Uniform ids would have a preferred token in about 3 of 300 sequences.
  assert len(shares) == 3 and sum(shares) / 3 > 0.02


def test_the_page_of_a_verdict_names_every_test():
  text = (ROOT / 'bornbiased_jax' / 'lineage' / 'README.md').read_text()
  for name, kind in TESTS.items():
    decides = 'yes' if kind.decides else 'no'
    assert f'| {name} | {kind.compares} | {decides} | {kind.misses} |' in text
