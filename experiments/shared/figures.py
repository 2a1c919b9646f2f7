"""How figures are written: every program that draws one has the flag --format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

# A flag, but no setting of a run: what was measured can be drawn again in another format.
FLAG = 'format'
flags.DEFINE_enum(FLAG, 'png', ('png', 'svg', 'pdf'), 'file format of figures (default: png)')


def write(drawn: Any, directory: Path, name: str = 'figure') -> Path:
  """Writes a figure to DIRECTORY/NAME.FORMAT, in the format that --format says."""
  from bornbiased_jax import plotting  # Of matplotlib --help needs nothing.
  path = directory / f'{name}.{flags.FLAGS[FLAG].value}'
  plotting.save(drawn, path)
  return path


def write_with_page(drawn: Any, directory: Path, page: Callable[[bytes], str]) -> Path:
  """Writes a figure, as `write` does, and report.html, which `page` makes of it as a PNG file."""
  from bornbiased_jax import files, plotting
  file = directory / f'figure.{flags.FLAGS[FLAG].value}'
  # Encoded, never read back: only the first of several processes writes.
  png = plotting.encode(drawn, 'png')
  files.write_atomically(file, png if file.suffix == '.png'
                         else plotting.encode(drawn, file.suffix[1:]))
  # A name that is not UTF-8 is shown with its bytes as numbers.
  files.write_atomically(directory / 'report.html', page(png).encode(errors='backslashreplace'))
  return file
