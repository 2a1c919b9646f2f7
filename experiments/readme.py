"""Writes the numbers in experiments/README.md: from README.md.jinja and measured/.

No number on that page that has a JSON can differ from it. To change the page, change the template,
and run

    python -m experiments.readme           # writes README.md
    python -m experiments.readme --check   # only says whether it would change; exit code 2 if so
"""

from pathlib import Path

from absl import flags

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import write_atomically

from .shared import command_line, stored

HERE = Path(__file__).parent
FLAGS = flags.FLAGS


def main() -> None:
  path = HERE / 'README.md'
  made = stored.render(HERE / 'README.md.jinja', HERE / 'measured').encode()
  if not FLAGS.check:
    write_atomically(path, made)
  elif made != path.read_bytes():
    raise InputError('README.md differs from what README.md.jinja and measured/ make; '
                     'run python -m experiments.readme')


if __name__ == '__main__':
  flags.DEFINE_bool('check', False, 'write nothing, only compare')
  command_line.launch(main, __doc__, ('check',))
