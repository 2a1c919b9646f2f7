"""What a folder holds: networks, and what looks like one and cannot be read."""

from collections.abc import Callable, Iterable
import os
from pathlib import Path
import sys
from typing import Any
import unicodedata

from tqdm import tqdm

from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage.evidence.array_file import SUFFIX
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.storage.model import why_none

# What programs write beside networks: folders without folders.
_CACHES = ('signatures', 'hidden_states')
# Files of weights that no reader takes alone.
_UNREAD = ('.bin', '.ckpt', '.h5', '.msgpack', '.npz', '.onnx', '.pkl', '.pt', '.pth', '.tar',
           '.tar.gz', '.tgz', '.zip')


class Finder:
  """Finds networks, and notes what it leaves out.

  Attributes:
    given: the networks that were named themselves.
    left_out: JSON, `name` and `reason` of each entry of a folder that cannot be read.
  """

  def __init__(self, given: list[str], output_dir: Path):
    self.given, self._output_dir = given, output_dir
    self.left_out: list[dict[str, str]] = []

  def leave_out(self, name: str, reason: str) -> None:
    """Notes and prints why an entry of a folder is none of the networks."""
    self.left_out.append({'name': name, 'reason': reason})
    tqdm.write(f'left out: {reason}', file=sys.stderr)

  def of_each(self, names: Iterable[str], call: Callable[[str], Any]) -> dict[str, Any]:
    """What a function makes of each network; one in a folder that cannot be read is left out.

    Raises:
      InputError: a network that was named itself cannot be read, or there are less than two.
    """
    found = {}
    for name in names:
      try:
        found[name] = call(name)
      except (InputError, OSError) as error:
        if name in self.given:
          raise
        self.leave_out(name, str(error))
    if len(found) < 2:
      alone = f'{", ".join(found)} alone was' if found else 'no network was'
      where = f'{alone} found in {", ".join(self.given)}; ' if self.given else ''
      raise InputError(f'{where}name at least two different networks, or a folder of them; see '
                       '--help')
    return found

  def expand(self, given: str, above: tuple[Path, ...] = ()) -> list[str]:
    """A network by its name, all checkpoints of a run, or all networks that a folder holds.

    A run in a folder stands for its latest checkpoint.
    """
    path = path_of(given)
    if steps := checkpoint.steps(path):
      self._name_beside(path)
      return [f'{given.rstrip("/")}@{step}' for step in (steps[-1:] if above else steps)]
    if not path.is_dir():
      return [given]
    if (path / 'config.json').exists():  # It may hold checkpoints, which are networks too.
      inside = [child for child in sorted(path.iterdir()) if (child / 'config.json').exists()]
      return [given, *(name for child in inside for name in self._inside(
          child, (*above, path.resolve())))] if above else [given]
    try:
      children = [child for child in sorted(path.iterdir()) if self._has_plain_name(child)]
    except OSError as error:
      raise InputError(f'{given} cannot be read: {error.strerror}') from None
    left_before = len(self.left_out)
    above = (*above, path.resolve())
    found = [name for child in children if child.is_dir() for name in self._inside(child, above)]
    if not found and why_none(path):
      return [given]
    found += [str(child) for suffix in (SUFFIX, '.gguf') for child in children
              if child.name.lower().endswith(suffix) and child.is_file()]
    self._name_unread(children)
    if not found and len(above) > 1 and len(self.left_out) == left_before:
      self.leave_out(given, f'{given} holds no network')
    return found

  def _inside(self, child, above):
    """The networks in a folder of a folder, but for what programs write there."""
    if _is_cache(child) or child.resolve() == self._output_dir.resolve():
      return []
    if any(folder.is_relative_to(child.resolve()) for folder in above):
      self.leave_out(str(child), f'{child} is a link to a folder that holds it')
      return []
    try:
      return self.expand(str(child), above)
    except InputError as error:
      self.leave_out(str(child), str(error))
      return []

  def _name_beside(self, run):
    """Notes networks that lie beside the checkpoints of a run, whose folder is read as one."""
    for child in sorted(run.iterdir()):
      # The checkpoints themselves hold none.
      if child.is_dir() and checkpoint.holds_network(child):
        self.leave_out(str(child), f'{child} lies beside checkpoints of {run}; name it by itself')

  def _has_plain_name(self, child):
    """Whether a name stays on its line of a table; it is left out if not."""
    is_plain = all(unicodedata.category(letter) != 'Cc' for letter in child.name)
    if not is_plain:
      self.leave_out(repr(child.name), f'{child.name!r} has control characters in its name')
    return is_plain

  def _name_unread(self, children):
    """Notes what else in a folder looks like weights, or is a link to nothing."""
    for child in children:
      if os.path.islink(child) and not child.exists():
        self.leave_out(str(child), f'{child} is a link that leads nowhere')
      elif child.is_file() and child.name.endswith(_UNREAD):
        self.leave_out(str(child), f'{child} may hold weights and is not read; give a '
                                   'directory of transformers with safetensors, or a GGUF file')


def _is_cache(folder):
  """Whether a folder is one that programs write beside networks, and holds no network."""
  return folder.name in _CACHES and os.access(folder, os.R_OK) and not any(
      child.name == 'config.json' or child.is_dir() for child in folder.iterdir())
