"""Writes the numbers of both READMEs, from their templates and measured/.

No number on these pages that has a JSON can differ from it. To change README.md, change
experiments/front_page.md.jinja, to change experiments/README.md, change README.md.jinja beside it,
and run

    python -m experiments.readme           # writes both
    python -m experiments.readme --check   # only says whether they would change; exit code 2 if so
"""

from pathlib import Path

from absl import flags
import jinja2

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

from .shared import command_line, stored

HERE = Path(__file__).parent
PAGES = {HERE.parent / 'README.md': HERE / 'front_page.md.jinja',
         HERE / 'README.md': HERE / 'README.md.jinja'}
FLAGS = flags.FLAGS


def main() -> None:
  # All are made before any is written.
  for path, made in {path: page(template) for path, template in PAGES.items()}.items():
    if not FLAGS.check:
      write_atomically(path, made)
    elif made != path.read_bytes():
      raise InputError(f'{path} differs from what its template and measured/ make; '
                       'run python -m experiments.readme')


def page(template: Path) -> bytes:
  """What a template makes of measured/."""
  try:
    return stored.render(template, HERE / 'measured').encode()
  except (LookupError, OSError, TypeError, ValueError, jinja2.TemplateError) as error:
    raise InputError(f'{template.name}: {type(error).__name__}: {error}') from None


if __name__ == '__main__':
  flags.DEFINE_bool('check', False, 'write nothing, only compare')
  command_line.launch(main, __doc__, ('check',))
