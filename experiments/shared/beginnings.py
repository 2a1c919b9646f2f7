"""What the sequences that a network reads begin with: one place decides it for all programs."""

from typing import NamedTuple

from bornbiased_jax.data import Tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.resolve import locate
from bornbiased_jax.storage import checkpoint


class Beginning(NamedTuple):
  """The ids that sequences begin with, and who says so."""

  ids: tuple[int, ...]
  said_by: str

  def __str__(self):
    return f'{" ".join(map(str, self.ids))} ({self.said_by})' if self.ids else '–'


def recorded(run: str) -> dict:
  """What the latest checkpoint of a run says about it."""
  return checkpoint.restore(run, lambda metadata: {})[0]


def beginning_of(name: str, tokenizer: Tokenizer, start_id: int | None = None) -> Beginning:
  """What the run of a network was trained with, else the BOS of its tokenizer, else --start_id."""
  kind, place, _ = locate(name)
  if kind == 'run':
    trained = (recorded(place).get('recipe') or {}).get('start_id')
    known = Beginning(() if trained is None else (trained,), 'run')
  else:
    known = Beginning(tokenizer.begin_ids, 'tokenizer')
  if start_id is None:
    return known
  if known.ids not in ((), (start_id,)):
    raise InputError(f'--start_id: {start_id}, but sequences of {name} begin with {known}')
  return known if known.ids else Beginning((start_id,), '--start_id')
