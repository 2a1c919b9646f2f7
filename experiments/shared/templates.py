"""Templates of pages. A name that is not known in one is an error, not an empty place."""

import base64
from pathlib import Path

import jinja2


def template(path: Path) -> jinja2.Template:
  """The template in a file of HTML, which may extend page.html here; texts are escaped in it."""
  made = jinja2.Environment(
      loader=jinja2.FileSystemLoader([path.parent, Path(__file__).parent]), autoescape=True,
      undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
      lstrip_blocks=True)
  made.filters['base64'] = lambda content: base64.b64encode(content).decode()
  return made.get_template(path.name)
