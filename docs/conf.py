"""Builds the site from the repository's pages, where they lie; notebooks run only if they changed.

    sphinx-build -W -c docs . results/site    # in the root; -D nb_execution_mode=off runs none
"""
import configparser
import importlib
import os
from pathlib import Path
import re

from docutils import nodes

ROOT = Path(__file__).parents[1]
MADE = ROOT / 'docs' / 'made'
options = configparser.ConfigParser()
options.read(ROOT / 'setup.cfg')
REPOSITORY = re.search(r'Repository = (\S+)', options['metadata']['project_urls'])[1]
RAW = REPOSITORY.replace('//github.com', '//raw.githubusercontent.com')

project = html_title = 'bornbiased_jax'
author = copyright = options['metadata']['author']
root_doc = 'docs/index'
include_patterns = ['docs/**', '*.md', 'experiments/README.md', 'experiments/measured/README.md',
                    'experiments/measured/*/README.md', 'bornbiased_jax/lineage/README.md',
                    'colab/*.ipynb']
exclude_patterns = ['.*', 'results', 'corpora', 'build', 'dist', 'docs/root']
extensions = ['myst_nb', 'sphinx_design', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
html_theme, html_extra_path = 'sphinx_book_theme', ['root']
html_theme_options = {'repository_url': REPOSITORY, 'use_repository_button': True,
                      'navbar_persistent': []}
html_static_path, html_css_files = ['static'], ['site.css']
default_role = 'code'
myst_enable_extensions, myst_heading_anchors = ['colon_fence', 'dollarmath'], 3
nb_execution_mode, nb_execution_timeout, nb_execution_raise_on_error = 'cache', 1200, True
nb_merge_streams = napoleon_use_ivar = True
autodoc_typehints, autodoc_typehints_description_target = 'description', 'documented'


def write_api(app):
  """Writes a page for each package: what it exports, and then what else its modules have."""
  MADE.mkdir(exist_ok=True)
  for folder in sorted(path.parent for path in ROOT.glob('bornbiased_jax/**/__init__.py')):
    package = '.'.join(folder.relative_to(ROOT).parts)
    exported = getattr(importlib.import_module(package), '__all__', ())
    text = f'{package}\n{"=" * len(package)}\n\n.. automodule:: {package}\n   :members:\n'
    for name in sorted(path.stem for path in folder.glob('[!_]*.py')):
      once = '   :no-index:\n' * (name in exported)  # A function of this name has the entry.
      text += (f'\n{name}\n{"-" * len(name)}\n\n.. automodule:: {package}.{name}\n{once}'
               f'   :members:\n   :exclude-members: {", ".join(exported)}\n')
    (MADE / f'{package}.rst').write_text(text)


def as_rst(app, what, name, obj, options, lines):
  """Docstrings are Markdown: | and * are letters, lists need no empty line, code is indented."""
  text = re.sub(r':(\n\n    )', r'::\1', '\n'.join(lines))
  text = re.sub(r'^( *(?!- )\S.*\n)(?= *- )', r'\1\n', text, flags=re.MULTILINE)
  letter = re.compile(r'[|*](?=[^`]*(?:`[^`]*`[^`]*)*$)')
  lines[:] = [line if '>>>' in line else letter.sub(r'\\\g<0>', line) for line in text.split('\n')]


def gallery():
  """A grid of the pictures and titles of the results, in the order of the list of results."""
  yield '::::{grid} 1 2 3 3\n:gutter: 3\n\n'
  listed = (ROOT / 'experiments' / 'README.md').read_text()
  for page in sorted(ROOT.glob('experiments/measured/*/README.md'),
                     key=lambda page: listed.find(f'measured/{page.parent.name}')):
    folder, title = page.parent, page.read_text().partition('\n')[0].removeprefix('# ')
    if (folder / 'figure.png').exists():
      place = f'/{folder.relative_to(ROOT)}'
      yield (f':::{{grid-item-card}} {title}\n:img-bottom: {place}/figure.png\n'
             f':link: {place}/README\n:link-type: doc\n:::\n')
  yield '::::\n'


def resolve(app, docname, source):
  """Shows what is only for the site. Links go to pages, of folders too, or to the repository."""
  def target(found):
    link = found[0].removeprefix(f'{RAW}/main')
    start = ROOT if link[0] == '/' else (ROOT / docname).parent
    path = Path(os.path.normpath(start / link.lstrip('/')))
    if '://' in link or not path.exists():
      return found[0]
    api = MADE / f'{".".join(path.relative_to(ROOT).parts)}.rst'
    page = next(filter(Path.exists, (path / 'README.md', api, path)))
    name = page.relative_to(ROOT)
    if page.suffix == '.png' or str(name.with_suffix('')) in app.env.found_docs:
      return f'/{name}'
    return f'{REPOSITORY}/{"tree" if path.is_dir() else "blob"}/main/{name}'

  cards = gallery() if docname == 'docs/results' else ()
  text = re.sub(r'<!-- site\n(.*?)-->', r'\1', source[0], flags=re.DOTALL)
  text = text.replace('<!-- gallery -->', ''.join(cards))
  source[0] = re.sub(r'(?<=\]\()[^)#\s]+', target, text)


def keep_picture(app, doctree):
  """The picture at a notebook's head is the one that its cell with the tag 'picture' drew."""
  for cell in doctree.findall(nodes.container):
    for image in cell.findall(nodes.image) if 'tag_picture' in cell['classes'] else ():
      picture = (ROOT / app.env.docname).with_suffix('.png')
      picture.write_bytes((ROOT / image['uri']).read_bytes())


def setup(app):
  """Connects what is above with the events of a build."""
  app.connect('builder-inited', write_api)
  app.connect('autodoc-process-docstring', as_rst, priority=400)
  app.connect('autodoc-skip-member', lambda app, what, name, member, skip, options:
              True if 'Alias for field' in str(member.__doc__) else None)
  app.connect('source-read', resolve)
  app.connect('doctree-read', keep_picture)
