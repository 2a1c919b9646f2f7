"""How figures are written: every program that draws one has the flag --format."""

from pathlib import Path
from typing import Any

from absl import flags

# A flag, but no setting of a run: what was measured can be drawn again in another format.
FLAG = 'format'
flags.DEFINE_enum(FLAG, 'png', ('png', 'svg', 'pdf'), 'file format of figures (default: png)')


def write(drawn: Any, directory: Path, name: str = 'figure') -> Path:
  """Writes a figure in the format that --format says.

  Returns:
    The file, DIRECTORY/NAME.FORMAT.
  """
  from bornbiased_jax import plotting  # Of matplotlib --help needs nothing.
  path = directory / f'{name}.{flags.FLAGS[FLAG].value}'
  plotting.save(drawn, path)
  return path
