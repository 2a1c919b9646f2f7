"""How figures and pages are written: every program that draws one has the flag --format."""

import base64
from collections.abc import Callable
from contextvars import ContextVar
import hashlib
from pathlib import Path
import re
import shlex
from typing import Any

import jinja2
from markupsafe import Markup

from bornbiased_jax import files, plotting
from bornbiased_jax.errors import plain
from bornbiased_jax.fields import Kind, choice

from . import provenance

# A flag, but no setting of a run: what was measured can be drawn again in another format.
FORMAT = ContextVar('format', default='png')
_ISOLATED = {'\u2068': Markup('<bdi>'), '\u2069': Markup('</bdi>')}
FORMAT_FLAG = Kind(choice('png', 'svg', 'pdf'), 'file format of figures')


def write(drawn: Any, directory: Path, name: str = 'figure') -> Path:
  """Writes a figure to DIRECTORY/NAME.FORMAT, in the format that --format says."""
  path = directory / f'{name}.{FORMAT.get()}'
  plotting.save(drawn, path)
  return path


def write_with_page(drawn: Any, directory: Path, page: Callable[[bytes], str]) -> Path:
  """Writes a figure, as `write` does, and report.html, which `page` makes of it as a PNG file."""
  file = directory / f'figure.{FORMAT.get()}'
  # Encoded, never read back: only the first of several processes writes.
  png = plotting.encode(drawn, 'png')
  files.write_atomically(file, png if file.suffix == '.png'
                         else plotting.encode(drawn, file.suffix[1:]))
  # A name that is not UTF-8 is shown with its bytes as numbers.
  files.write_atomically(directory / 'report.html', page(png).encode(errors='backslashreplace'))
  return file


def isolated(name: str) -> str:
  """A name between marks that keep letters from right to left from moving what is beside it."""
  return f'\u2068{name}\u2069'


def _shown(value):
  """A value on a page; of texts all characters are seen, and names that are isolated stay so."""
  if not isinstance(value, str) or isinstance(value, Markup):
    return value
  return Markup('').join(_ISOLATED.get(part) or plain(part)
                         for part in re.split('([\u2068\u2069])', value))


def template(name: str) -> Any:
  """The template in a file here, which may extend page.html; texts are escaped in it."""
  made = jinja2.Environment(
      loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, finalize=_shown,
      undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
      lstrip_blocks=True)
  made.filters |= {
      'base64': lambda content: base64.b64encode(content).decode(), 'quote': shlex.quote,
      'sha256': lambda text: hashlib.sha256(text.encode()).digest(),
      'flat': lambda text: re.sub('[\u2068\u2069]', '', text)}
  made.globals |= {'start': provenance.start(), 'figure': f'figure.{FORMAT.get()}'}
  return made.get_template(name)
