"""Templates of pages. A name that is not known in one is an error, not an empty place."""

from collections.abc import Callable
from pathlib import Path

import jinja2


def template(path: Path, **filters: Callable) -> jinja2.Template:
  """The template in a file; into HTML, texts are put with their special characters escaped.

  Raises:
    OSError, jinja2.TemplateError: it cannot be read, or is not a template.
  """
  made = jinja2.Environment(autoescape=path.suffix == '.html', undefined=jinja2.StrictUndefined,
                            keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)
  made.filters.update(filters)
  return made.from_string(path.read_text())
