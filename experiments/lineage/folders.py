"""What a folder holds: models, and what looks like one and cannot be read."""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import os
from pathlib import Path
import sys
from typing import Any

from tqdm import tqdm

from bornbiased_jax.errors import STOPS, InputError, is_plain, plain, show
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage.evidence.array_file import SUFFIX
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.storage.huggingface.io import why_none

# What programs write next to networks: folders without folders.
_CACHES = ('signatures', 'hidden_states')
# Files of weights that no reader takes by themselves.
_UNREAD = ('.bin', '.ckpt', '.h5', '.msgpack', '.npz', '.onnx', '.pkl', '.pt', '.pth', '.tar',
           '.tar.gz', '.tgz', '.zip')
# Folders are read so deep, and so many.
_DEEPEST, _MOST_FOLDERS = 30, 10_000


class Finder:
  """Finds models, and notes what it leaves out.

  Attributes:
    given: the models that were named themselves.
    left_out: JSON, `name` and `reason` of each entry of a folder that cannot be read.
  """

  def __init__(self, given: list[str], output_dir: Path):
    self.given, self._output_dir = given, output_dir
    self.left_out: list[dict[str, str]] = []
    self._seen: dict[Path, Path] = {}  # The folders that were read, by their real paths.
    self._num_read = 0

  def leave_out(self, name: str, reason: str) -> None:
    """Notes and prints why an entry of a folder is none of the models."""
    self.left_out.append({'name': plain(name), 'reason': plain(reason)})
    tqdm.write(f'left out: {plain(reason)}', file=sys.stderr)

  @contextlib.contextmanager
  def leaving_out(self, name: str) -> Iterator[None]:
    """Leaves out what the block cannot read or compare, whatever it raises."""
    try:
      yield
    except STOPS:
      raise
    except (InputError, OSError) as error:
      self.leave_out(name, str(error))
    except BaseException as error:  # A panic of a library in Rust is no Exception.
      self.leave_out(name, f'{name} met a bug of this package; please report it: '
                           f'{type(error).__name__}: {show(error)}')

  def of_each(self, names: Iterable[str], call: Callable[[str], Any]) -> dict[str, Any]:
    """What a function makes of each model; one in a folder that cannot be read is left out.

    Raises:
      InputError: a model that was named itself cannot be read, or there are less than two.
    """
    found = {}
    for name in names:
      with contextlib.nullcontext() if name in self.given else self.leaving_out(name):
        found[name] = call(name)
    if len(found) < 2:
      alone = f'only {", ".join(found)} was' if found else 'no model was'
      where = f'{alone} found in {", ".join(self.given)}; ' if self.given else ''
      raise InputError(f'{where}name at least two different models, or a folder of them; see '
                       '--help')
    return found

  def expand(self, given: str, above: tuple[Path, ...] = ()) -> list[str]:
    """A model by its name, all checkpoints of a run, or all models that a folder holds.

    A run in a folder stands for its latest checkpoint.
    """
    path = path_of(given)
    if not above:
      self._seen, self._num_read = {}, 0
    if steps := checkpoint.steps(path):
      self._name_beside(path)
      return [f'{given.rstrip("/")}@{step}' for step in (steps[-1:] if above else steps)]
    if not path.is_dir():
      return [given]
    real = path.resolve()
    first, inside = self._seen.setdefault(real, path), (*above, real)
    if (path / 'config.json').exists():  # It may hold checkpoints, which are networks too.
      children = self._children(path) if above and first is path else []
      return [given, *(name for child in children if (child / 'config.json').exists()
                       for name in self._inside(child, inside))]
    if first is not path:
      raise InputError(f'{given} is the folder {first}, which was read')
    left_before, children = len(self.left_out), self._children(path)
    found = [name for child in children if child.is_dir() for name in self._inside(child, inside)]
    if not found and why_none(path):
      return [given]
    found += [str(child) for suffix in (SUFFIX, '.gguf') for child in children
              if child.name.lower().endswith(suffix) and child.is_file()]
    self._name_unread(children)
    if not found and above and len(self.left_out) == left_before:
      self.leave_out(given, f'{given} holds no model')
    return found

  def _inside(self, child, above):
    """The networks in a folder of a folder, but for what programs write there."""
    self._num_read += 1
    with self.leaving_out(str(child)):
      if (self._num_read > _MOST_FOLDERS + 1 or _is_cache(child)
          or child.resolve() == self._output_dir.resolve()):
        return []
      if self._num_read > _MOST_FOLDERS:
        raise InputError(f'{child} and what follows were not read, after {_MOST_FOLDERS:,} folders')
      if len(above) > _DEEPEST:
        raise InputError(f'{child} lies more than {_DEEPEST} folders deep')
      if any(folder.is_relative_to(child.resolve()) for folder in above):
        raise InputError(f'{child} is a link to a folder that holds it')
      return self.expand(str(child), above)
    return []

  def _children(self, folder):
    """What a folder holds, in order; names are left out that do not stay on a line of a table."""
    try:
      children = sorted(folder.iterdir())
    except OSError as error:
      raise InputError(f'{folder} cannot be read: {error.strerror}') from None
    for child in children:
      if not is_plain(child.name):
        self.leave_out(ascii(child.name), f'{ascii(child.name)} has control characters in its name')
    return [child for child in children if is_plain(child.name)]

  def _name_beside(self, run):
    """Notes networks that lie next to the checkpoints of a run, whose folder is read as one."""
    for child in self._children(run):
      # The checkpoints themselves hold none.
      if child.is_dir() and checkpoint.holds_network(child):
        self.leave_out(str(child), f'{child} lies next to checkpoints of {run}; name it by itself')

  def _name_unread(self, children):
    """Notes what else in a folder looks like weights, or is a link to nothing."""
    for child in children:
      if os.path.islink(child) and not child.exists():
        self.leave_out(str(child), f'{child} is a link that leads nowhere')
      elif child.is_file() and child.name.endswith(_UNREAD):
        self.leave_out(str(child), f'{child} may hold weights and is not read; give a '
                                   'Hugging Face model folder with safetensors, or a GGUF file')


def _is_cache(folder):
  """Whether a folder is one that programs write next to networks, and holds no network."""
  return folder.name in _CACHES and os.access(folder, os.R_OK) and not any(
      child.name == 'config.json' or child.is_dir() for child in folder.iterdir())
