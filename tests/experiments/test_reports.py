"""The pages of lineage, seedprint and audit, as a browser shows and prints them."""

import itertools
import json
import re
import shutil
import subprocess

import pytest

from bornbiased_jax.lineage.comparison.every_test import TESTS
import browser
from experiments.audit import __main__ as audit
from experiments.lineage import __main__ as lineage
from experiments.seedprint import __main__ as seedprint
from experiments.shared import session, verdicts

needs_browser = pytest.mark.skipif(not browser.FOUND, reason='there is no Chromium')
SCRIPT, LONG = '<script>document.title = "ran"</script>', 200 * 'w'
HOSTILE = ['zoo/open-llama', 'zoo/supplier-v2', f'zoo/{SCRIPT}', 'zoo/a\u202eb\u200f', 'zoo/שלום',
           f'zoo/{LONG}', f'zoo/{LONG[1:]}x', 'zoo/"><img src=x onerror=alert(1)>', 'zoo/lora']
MADE = {'environment': {'jax': '0'}, 'run': {
    'command': f'python -m experiments.lineage {SCRIPT}', 'commit': 'abc', 'seconds': 1.0,
    'started': '2026-01-02T03:04:05+00:00'}}
MANY = [f'models/{maker}-{size}b' for maker in 'abcdefghij' for size in range(1, 6)]


def about(name, **more):
  return {'name': name, 'type': '4 layers', 'parameters': 10**9, 'digest': 64 * 'd'} | more


def row(base, suspect, verdict, number=0, **more):
  """A row of results.json, of a pair that agrees in nothing if it is not related."""
  likeness, p_value = (0.5 + number % 50 / 100, 1e-9) if verdict == 'related' else (0.001, 1.0)
  decided = dict(statistic=likeness, z=likeness * 20, p_value=p_value, reason=None, level=None)
  missing = decided | dict(statistic=None, z=None, p_value=None, reason='they have other widths')
  level = decided | dict(z=None, p_value=None, level=0.2)
  tests = [{'test': name, 'decides': kind.decides, **found} for (name, kind), found in zip(
      TESTS.items(), [decided] * 3 + [missing] * 2 + [level] * 3, strict=True)]
  return {'base': base, 'suspect': suspect, 'verdict': verdict, 'p_value': p_value,
          'z': likeness * 20, 'likeness': likeness, 'identical': False, 'agree': [],
          'reasons': [f'Reason of pair {number}.'], 'caveats': [f'Caveat {number}.'],
          'tests': tests, 'alone': verdict, 'corrected_p_value': p_value, 'correction': None,
          'detectable': 0.1 if verdict == 'unrelated' else None} | more


def compared(names, verdict_of, suspect=None, **of_lora):
  """A report of lineage, in which a function gives what is said of two names."""
  rows = [row(*pair, number=i, **verdict_of(*pair)) for i, pair in enumerate(
      itertools.combinations(names, 2)) if suspect in (None, *pair)]
  return MADE | {'networks': names, 'about': [
      about(name, **of_lora if name.endswith('lora') else {}) for name in names], 'rows': rows,
      'left_out': [{'name': SCRIPT, 'reason': SCRIPT}], 'summary': [],
      'settings': {'networks': names, 'suspect': suspect, 'json': False, 'num_sequences': 2000}}


def of_hostile(base, suspect):
  first = HOSTILE.index(base) < 2, HOSTILE.index(suspect) < 2
  return {'verdict': 'related' if all(first) else 'inconclusive' if any(first) else 'unrelated'} | (
      {'verdict': 'related', 'identical': True} if LONG[1:] in base and LONG[1:] in suspect else {})


def of_many(base, suspect):
  return {'verdict': 'related' if base[:8] == suspect[:8] else 'unrelated'}


@pytest.fixture(scope='module')
def pages(tmp_path_factory):
  """Folders of reports: of names that mean harm, of 50 models, of a suspect, of a pair, audits."""
  root = tmp_path_factory.mktemp('reports')
  folder = lambda name: (root / name).mkdir() or root / name
  lora = {part: {'name': name, 'digest': ''} for part, name in (
      ('base', 'zoo/open-llama'), ('adapter', 'zoo/lora'))}
  lineage.write(compared(HOSTILE, of_hostile, **lora), folder('hostile'))
  lineage.write(compared(MANY, of_many), folder('many'))
  lineage.write(compared(MANY[:8], of_many, MANY[1]), folder('suspect'))
  one = row('', '', 'related') | MADE | {
      'settings': {'base': HOSTILE[2], 'suspect': 'zoo/supplier-v2', 'json': False,
                   'num_sequences': 2000}, 'base': about(HOSTILE[2]), 'suspect': about(SCRIPT),
      'shared_tensors': [], 'alpha': 1e-4, 'sequences': 2000, 'probe': {'length': 64}}
  one['tests'] = [each | {'compares': '', 'misses': ''} for each in one['tests']]
  seedprint.write(one, folder('pair'))
  steps = [{'step': step, 'digest': 64 * 'd', 'from_first': step / 10, 'from_previous': 1.0}
           for step in range(6)]
  fault = {'kind': 'other origin', 'steps': [4], 'where': SCRIPT, 'what': f'Step 4 has {SCRIPT}.',
           'value': 0.1, 'measure': 'likeness', 'p_value': 1.0, 'is_fault': True}
  for name, findings in (('sound', []), ('faulty', [fault])):
    report = MADE | {'networks': {step: f'{LONG}/step_{step}' for step in range(6)},
                     'settings': {}, 'checkpoints': steps, 'findings': findings}
    audit.write(report, folder(name))
  return root


@pytest.fixture(scope='module')
def page():
  with browser.opened() as shown:
    yield shown


NAMES = ['pair', 'hostile', 'many', 'suspect', 'sound', 'faulty']
SEEN = '[...document.querySelectorAll("body *")].filter(each => each.checkVisibility())'
TOO_WIDE = SEEN + '''.filter(each => !each.closest('.figure')
    && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML)'''
SIZES = SEEN + '''.filter(each => [...each.childNodes].some(node => node.nodeType === 3
    && node.data.trim())).map(each => parseFloat(getComputedStyle(each).fontSize))'''


@needs_browser
@pytest.mark.parametrize('name', NAMES)
def test_a_page_fits_every_screen(name, pages, page):
  backgrounds = set()
  views = list(itertools.product((1400, 390), ('light', 'dark')))
  # Layout depends on the width, and colours on the scheme: most pages are seen in each once.
  for width, scheme in views if name == NAMES[0] else (views[0], views[3]):
    page.open(pages / name / 'report.html', width, scheme)
    if name != 'many':
      page.js('document.querySelectorAll("details").forEach(each => each.open = true)')
    assert page.js('document.documentElement.scrollWidth <= innerWidth')
    assert page.js(TOO_WIDE) == []
    assert min(size for size in page.js(SIZES) if size) >= 11  # 0 is what a cell has no room for.
    backgrounds.add(page.js('getComputedStyle(document.body).backgroundColor'))
    assert page.js('document.title') != 'ran' and page.js('document.scripts.length') == 1
  assert len(backgrounds) == 2 and page.errors == []
  links = page.js('[...document.links].map(each => each.getAttribute("href"))')
  ids = page.js('[...document.querySelectorAll("[id]")].map(each => "#" + each.id)')
  assert links and all((pages / name / each).exists() for each in set(links) - set(ids))


@needs_browser
def test_nothing_but_the_own_script_runs(pages, page, tmp_path):
  text = (pages / 'pair' / 'report.html').read_text()
  planted = text.replace('<h1>', '<h1 onclick="document.title = `ran`">'
                         '<img src="x" onerror="document.title = `ran`">' + SCRIPT)
  (tmp_path / 'planted.html').write_text(planted)
  page.open(tmp_path / 'planted.html', 1400)
  page.js('document.querySelector("h1").click()')
  assert page.js('document.title') != 'ran'
  assert {each['entry']['source'] for each in page.errors} == {'security'}
  page.errors.clear()


SHOWN = '''[...document.querySelectorAll('.pairs > tbody')].filter(each => !each.hidden).map(
    each => [...each.rows[0].cells].map(cell => cell.textContent.trim()))'''


@needs_browser
def test_pairs_are_sorted_and_filtered(pages, page):
  page.open(pages / 'many' / 'report.html', 1400)
  assert page.js('document.querySelector("details.unrelated").open') is False
  assert page.js('[...document.querySelectorAll(".count")].map(each => each.textContent)') == [
      '100', '1,125']
  shown = page.js(SHOWN)
  click = 'document.querySelectorAll(".pairs")[0].querySelectorAll("button")[{}].click()'
  likeness = lambda: [float(each[2]) for each in page.js(SHOWN)[:100]]
  page.js(click.format(2))
  assert likeness() == sorted(likeness())
  page.js(click.format(2))
  assert likeness() == sorted(likeness(), reverse=True) and sorted(page.js(SHOWN)) == sorted(shown)
  page.js('document.querySelector("input").value = "A-1b b-2b"')
  page.js('document.querySelector("input").oninput()')
  assert [each[:2] for each in page.js(SHOWN)] == [['a-1b', 'b-2b']]
  assert page.js('document.querySelector("details.unrelated").open') is True
  # Without scripts all pairs are there, and nothing that does not work.
  page.open(pages / 'many' / 'report.html', 1400, javascript=False)
  assert page.js('document.querySelectorAll("button").length') == 0
  assert page.js('document.querySelector("input").checkVisibility()') is False
  assert len(page.js(SHOWN)) == 1225


@needs_browser
@pytest.mark.skipif(not shutil.which('pdftotext'), reason='there is no pdftotext')
@pytest.mark.parametrize('name', ['hostile', 'pair', 'faulty'])
def test_on_paper_all_reasons_are_there_and_no_heading_alone(name, pages, page, tmp_path):
  page.open(pages / name / 'report.html', 1400, 'dark')
  headings = set(page.js('[...document.querySelectorAll("h2, h3")].map(each => each.textContent)'))
  (tmp_path / 'report.pdf').write_bytes(page.pdf())
  printed = subprocess.run(['pdftotext', '-raw', tmp_path / 'report.pdf', '-'],
                           capture_output=True, text=True, check=True).stdout
  squeezed = re.sub(r'\s', '', printed)
  content = json.loads((pages / name / 'results.json').read_text())
  for each in content.get('rows', [content] if name == 'pair' else []):
    assert all(re.sub(r'\s', '', said) in squeezed for said in each['reasons'] + each['caveats'])
  assert 64 * 'd' in squeezed and '2026-01-02' in squeezed
  for sheet in printed.split('\f'):
    assert not sheet.strip() or sheet.strip().splitlines()[-1].strip() not in headings


@pytest.mark.parametrize('package, command', [
    ('experiments.shared', 'python -m experiments.audit CHECKPOINTS/'),
    ('bornbiased_experiments.shared', 'bornbiased audit CHECKPOINTS/')])
def test_a_page_says_the_command_that_works_here(package, command, tmp_path, monkeypatch):
  monkeypatch.setattr(session, '__package__', package)
  lineage.write(compared(MANY[:3], of_many), tmp_path)
  assert f'>{command}' in (tmp_path / 'report.html').read_text()


def test_labels_tell_apart_what_looks_alike():
  names = ['zoo/a/model', 'zoo/b/model', f'zoo/{LONG}x{LONG}', f'zoo/{LONG}y{LONG}', '.', '/']
  found = verdicts.labels(list(map(about, names)))
  assert len(set(found)) == len(names) and found[:2] == ['a/model', 'b/model']
  assert max(map(len, found)) < 40
