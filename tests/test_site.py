"""The site's own pages: their code runs, and the repository has one address everywhere."""

import configparser
from pathlib import Path
import re

import pytest

from directories import quiet_transformers

ROOT = Path(__file__).parents[1]
# What pages say, and what tests put in its place.
LESS = {'num_sequences=1000': 'num_sequences=100', 'num_sequences=2000': 'num_sequences=300',
        '64': '8', 'range(10)': 'range(2)', 'num_networks=30': 'num_networks=2', '1000,': '100,'}


def test_the_address_of_the_repository_stands_in_one_place():
  """Only setup.cfg has it, and notebooks, which are also read outside of the repository."""
  options = configparser.ConfigParser()
  options.read(ROOT / 'setup.cfg')
  links = options['metadata']['project_urls']
  ours = re.search(r'Repository = https://github\.com/(\S+)', links)[1]
  folders = ('.', 'colab', 'docs/**', 'experiments/**', 'bornbiased_jax/**', 'tests/**')
  paths = {path for folder in folders for kind in ('md', 'ipynb', 'py', 'cf[fg]', 'toml', 'html')
           for path in ROOT.glob(f'{folder}/*.{kind}')}
  found = {(path.relative_to(ROOT).parts[0], address) for path in paths
           for address in re.findall(r'[\w-]+/bornbiased_jax(?=/(?:archive|blob|main|tree|raw)\b)|'
                                     r'(?<=github\.com/)[\w-]+/bornbiased_jax', path.read_text())}
  assert {address for _, address in found} == {ours}
  assert {place for place, _ in found} == {'setup.cfg', 'colab'}
  owner = ours.partition('/')[0]
  assert f's/{owner}/' in (ROOT / 'setup.cfg').read_text()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['architecture', 'text', 'add', 'models'])
def test_the_code_of_a_page_runs(name, capsys, monkeypatch, tmp_path):
  if name == 'models':
    quiet_transformers()
  monkeypatch.chdir(tmp_path)
  page = (ROOT / 'docs' / 'howto' / f'{name}.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
  code = '\n'.join(blocks)
  for said, less in LESS.items():
    code = code.replace(said, less)
  exec(compile(code, name, 'exec'), {})  # noqa: S102
  assert blocks and (capsys.readouterr().out or 'print' not in code)
