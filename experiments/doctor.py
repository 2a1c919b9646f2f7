"""Was the package tested on what is here? Versions, device, and what is missing.

    python -m experiments.doctor

Prints a table. Exit code 2 if JAX cannot use what JAX_PLATFORMS names.
"""

from bornbiased_jax import environment
from bornbiased_jax.errors import InputError

from .shared import program, tables
from .shared.settings import ProgramSettings as Settings


def main(settings: Settings) -> None:
  del settings
  if problem := environment.unusable_platform():
    raise InputError(problem)
  print(tables.table(environment.check()))


if __name__ == '__main__':
  program.run(main, 'doctor', Settings, __doc__, has_folder=False)
