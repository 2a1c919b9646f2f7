"""Writes the numbers in README.md and experiments/README.md: from their templates and measured/.

No number on these pages that has a JSON can differ from it. To change README.md, change
experiments/front_page.md.jinja, to change experiments/README.md, change README.md.jinja beside it,
and run

    python -m experiments.readme           # writes both
    python -m experiments.readme --check   # only says whether they would change; exit code 2 if so
"""

from pathlib import Path

from absl import flags

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

from .shared import command_line, stored

HERE = Path(__file__).parent
PAGES = {HERE.parent / 'README.md': HERE / 'front_page.md.jinja',
         HERE / 'README.md': HERE / 'README.md.jinja'}
FLAGS = flags.FLAGS


def main() -> None:
  for path, template in PAGES.items():
    if not template.exists():
      raise InputError(f'{template.name} is missing: this program needs a checkout')
    made = stored.render(template, HERE / 'measured').encode()
    if not FLAGS.check:
      write_atomically(path, made)
    elif made != path.read_bytes():
      raise InputError(f'{path} differs from what {template.name} and measured/ make; '
                       'run python -m experiments.readme')


if __name__ == '__main__':
  flags.DEFINE_bool('check', False, 'write nothing, only compare')
  command_line.launch(main, __doc__, ('check',))
