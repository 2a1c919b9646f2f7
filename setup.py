"""The package, as setup.cfg describes it; on a package index README's links are absolute."""

import configparser
from pathlib import Path
import re

import setuptools

HERE = Path(__file__).parent


def absolute(text: str, address: str) -> str:
  """A page in whose links and pictures, relative before, names of files follow an address."""
  view, raw = f'{address}/blob/main/', f'{address}/raw/main/'
  link = re.compile(r'(!?)\[([^\[\]]*)\]\((?!https?:|#)([^)]+)\)')
  return link.sub(lambda found: f'{found[1]}[{found[2]}]({raw if found[1] else view}{found[3]})',
                  text)


def repository() -> str:
  """The address of the repository in setup.cfg."""
  config = configparser.ConfigParser()
  config.read(HERE / 'setup.cfg')
  return re.search(r'^Repository = (.+)$', config['metadata']['project_urls'], re.MULTILINE)[1]


if __name__ == '__main__':
  setuptools.setup(long_description=absolute((HERE / 'README.md').read_text(), repository()))
