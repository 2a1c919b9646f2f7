"""Both READMEs say what is stored, and notice a digit that is not."""

import json
import shutil
import subprocess
import sys

import jinja2
import pytest

from experiments import readme
from experiments.shared import stored


@pytest.mark.parametrize('page', readme.PAGES)
def test_pages_say_what_is_stored(page):
  made = stored.render(readme.PAGES[page], readme.HERE / 'measured')
  assert made == page.read_text(), 'run python -m experiments.readme'


@pytest.fixture
def copy(tmp_path):
  """The page, its template and the results of one experiment in a folder of their own."""
  for name in ('README.md', 'README.md.jinja'):
    shutil.copy(readme.HERE / name, tmp_path / name)
  shutil.copytree(readme.HERE / 'measured', tmp_path / 'measured',
                  ignore=shutil.ignore_patterns('*.png'))
  return tmp_path


@pytest.mark.parametrize('experiment, field', [
    ('seed_sweep', 'top1_frequency'), ('contraction', 'inter_sequence_cosine'),
    ('amplification', 'measured'), ('born_unbiased', 'z'), ('text_sinks', 'loss'),
])
def test_a_changed_number_is_noticed(copy, experiment, field):
  path = copy / 'measured' / experiment / 'results.json'
  content = json.loads(path.read_text())
  for row in content['summary']:
    row[field] = json.loads(json.dumps(row[field]), parse_float=lambda t: 1.5 * float(t) + 0.01)
  path.write_text(json.dumps(content))
  made = stored.render(copy / 'README.md.jinja', copy / 'measured')
  assert made != (copy / 'README.md').read_text()


def test_what_is_not_stored_is_an_error(copy):
  template = copy / 'small.jinja'
  for text in ("{{ measured('seed_sweep').row(length=7) }}", "{{ measured('nothing') }}",
               "{{ measured('seed_sweep').row(length=64).misspelt }}"):
    template.write_text(text)
    with pytest.raises((LookupError, OSError, jinja2.TemplateError)):
      stored.render(template, copy / 'measured')


def test_check_writes_nothing():
  before = [path.stat().st_mtime_ns for path in readme.PAGES]
  done = subprocess.run([sys.executable, '-m', 'experiments.readme', '--check'], check=False)
  assert done.returncode == 0 and [path.stat().st_mtime_ns for path in readme.PAGES] == before
