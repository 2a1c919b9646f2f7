"""How figures and pages are written: every program that draws one has the flag --format."""

import base64
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jinja2

from bornbiased_jax import files, plotting
from bornbiased_jax.fields import Kind, choice

# A flag, but no setting of a run: what was measured can be drawn again in another format.
FORMAT = ContextVar('format', default='png')
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


def template(path: Path) -> Any:
  """The template in a file of HTML, which may extend page.html here; texts are escaped in it."""
  made = jinja2.Environment(
      loader=jinja2.FileSystemLoader([path.parent, Path(__file__).parent]), autoescape=True,
      undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
      lstrip_blocks=True)
  made.filters['base64'] = lambda content: base64.b64encode(content).decode()
  return made.get_template(path.name)
