"""What may be wrong with a history of checkpoints.

Repeats are told by digests, a common origin by the tests of the lineage verdict, and places in the
history by distances between the entries that are kept of each matrix (trajectory.py).
"""

from collections.abc import Callable, Iterable

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence.tensors import digest_of
from bornbiased_jax.lineage.testing.order import order_tests

from .descent import Descent
from .finding import finding, steps_text
from .history import Checkpoint
from .trajectory import Trajectory


def examine(history: Iterable[tuple[int, Checkpoint | InputError]],
            tests: Callable = order_tests) -> dict:
  """All that is found in a history: `findings` and `checkpoints`, in JSON.

  `history` has for each step, ascending, its checkpoint, or why it cannot be read. A finding that
  is no fault is a note.
  """
  read: dict[int, Checkpoint] = {}
  found, descent, rows = [], Descent(tests), []
  for step, given in history:
    first = next(iter(read.values()), None)
    if isinstance(given, InputError):
      found.append(finding('unreadable', [step], what=str(given)))
    elif first and _shapes(given) != _shapes(first):
      found.append(finding('other architecture', [step],
                            what=f'Step {step} has tensors of other names or shapes.'))
    else:
      read[step] = given._replace(features=None)
      descent.add(step, given)
      rows.append({'step': step, 'digest': digest_of(given.tensors)} | descent.rows[step])
  if len(read) < 2:
    raise InputError(next((str(each['what']) for each in found),
                          'the history has less than two checkpoints'))
  found += repeats(rows) + other_lines(descent)
  in_path = _distinct(rows, max(descent.lines, key=len))
  found += Trajectory({step: read[step] for step in in_path}).findings()
  shown = Trajectory(read).places
  return {'findings': sorted(found, key=lambda each: (not each['is_fault'], each['steps'])),
          'checkpoints': [row | shown[row['step']] for row in rows]}


def _shapes(given):
  return {name: each.shape for name, each in given.tensors.items()}


def repeats(rows: list[dict]) -> list[dict]:
  """Checkpoints that are the same as others."""
  of_digest: dict[str, list[int]] = {}
  for row in rows:
    of_digest.setdefault(row['digest'], []).append(row['step'])
  # A warm-up from 0 takes its first step at a rate of 0.
  return [finding('unchanged' if steps == [0, 1] else 'repeat', steps, value=digest[:16], what=(
      f'{steps_text(steps).capitalize()} have the same weights in every tensor. They are one '
      'checkpoint, unless the learning rate was 0 between them.'), is_fault=steps != [0, 1])
          for digest, steps in of_digest.items() if len(steps) > 1]


def other_lines(descent: Descent) -> list[dict]:
  """Checkpoints that do not have the origin of most of them."""
  main = max(descent.lines, key=len)
  found = []
  for steps in descent.lines:
    if steps is main:
      continue
    # What each has been compared with is the first checkpoint.
    compared = main if descent.lines[0] is steps else steps
    tested = [descent.rows[step] for step in compared
              if descent.rows[step]['p_value'] is not None]
    found.append(finding(
        'other origin', steps, value=max(row['likeness'] for row in tested),
        p_value=min(1.0, len(tested) * min(row['p_value'] for row in tested)),
        what=f'{steps_text(steps).capitalize()}: of another origin than {steps_text(main)}. '
             'No test finds descent, and those of units and of values could have found it.'))
  return found


def _distinct(rows, steps):
  """Those of some steps that no other repeats; of neighbours that repeat each other the first."""
  inside = [row for row in rows if row['step'] in steps]
  kept = [row for before, row in zip([None, *inside], inside, strict=False)
          if not before or row['digest'] != before['digest']]
  digests = [row['digest'] for row in kept]
  return [row['step'] for row in kept if digests.count(row['digest']) == 1]
