"""What `reproduce` can run, and what the paper shows in one place: the entries of the catalogue."""

from collections.abc import Mapping
from typing import NamedTuple


class Run(NamedTuple):
  """One run of one program.

  Attributes:
    program: the experiment.
    minutes: how long it takes, by scale; it is not part of other scales.
    flags: its settings, beside the scale's own.
    name: its folder of results, if the program runs more than once.
    reads: the folders of other runs, or in them, whose checkpoints its flags want, by flag.
    after: runs whose checkpoints it reads too, if they have been begun.
    texts: the texts that its flags want, by flag.
    needs: those texts without which it cannot run, but at --scale=smoke.
    at: settings of single scales, in place of `flags`.
  """

  program: str
  minutes: Mapping[str, float]
  flags: Mapping[str, str] = {}
  name: str = ''
  reads: Mapping[str, str] = {}
  after: tuple[str, ...] = ()
  texts: Mapping[str, str] = {}
  needs: tuple[str, ...] = ()
  at: Mapping[str, Mapping[str, str]] = {}

  def settings(self, scale: str) -> dict[str, str]:
    """
    >>> run = Run('sweep', {'laptop': 1, 'paper': 9}, {'seeds': '0-9'}, at={'paper': {'n': '99'}})
    >>> run.settings('laptop'), run.settings('paper')
    ({'seeds': '0-9'}, {'seeds': '0-9', 'n': '99'})
    """
    return {**self.flags, **self.at.get(scale, {})}

  @property
  def folder(self) -> str:
    return self.name or self.program

  @property
  def readable(self) -> list[str]:
    """The folders of the runs that it reads."""
    return [path.split('/')[0] for path in self.reads.values()]


class Item(NamedTuple):
  """What the paper shows in one place, or what this package adds (no `names` of the paper's)."""

  names: tuple[str, ...]
  title: str
  claim: str
  published: str
  runs: tuple[Run, ...]
