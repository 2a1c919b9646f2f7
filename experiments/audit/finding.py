"""A finding, as results.json has it, and the words for where it is."""

from collections.abc import Iterable

# What the value of a finding is.
MEASURES = {'repeat': 'digest', 'repeat in part': 'tensors', 'unchanged': 'tensors',
            'other origin': 'likeness', 'order': 'distance ratio',
            'order in part': 'tensors',
            'from elsewhere': 'distance ratio', 'off the path': 'distance ratio'}


def finding(kind: str, steps: list[int], what: str, where: Iterable[str] = (),
            value: float | str | None = None, p_value: float | None = None,
            is_fault: bool = True) -> dict:
  """A row: `where` are names of tensors, `what` is a sentence; it is a note if it is no fault."""
  return {'kind': kind, 'steps': steps, 'where': places(where), 'what': what, 'value': value,
          'measure': MEASURES.get(kind), 'p_value': p_value, 'is_fault': is_fault,
          'tensors': list(where)}


def places(names: Iterable[str]) -> str:
  """The parts of a network that tensors are of: 'layer 3, embedding'."""
  return ', '.join(dict.fromkeys(name.partition('/')[0] for name in names))


def steps_text(steps: list[int]) -> str:
  """
  >>> steps_text([4]), steps_text([4, 8]), steps_text([0, 4, 8, 9])
  ('step 4', 'steps 4 and 8', 'steps 0, 4, 8, 9')
  """
  if len(steps) == 1:
    return f'step {steps[0]}'
  joint = ' and ' if len(steps) == 2 else ', '
  return f'steps {joint.join(map(str, steps))}'
