"""Entries are what they must be, or the message says in one line what is wrong."""

import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface_entries as entries


@pytest.mark.parametrize('kind, right, wrong', [
    (entries.COUNT, [1, 2**31 - 1], [0, -1, True, 1.0, '1', None, 2**31]),
    (entries.COUNT_OR_NULL, [1, None], [0, False, 2.0, 'null']),
    (entries.NUMBER, [1, 1e-9], [0, -1.0, float('nan'), float('inf'), True, '1', None]),
    (entries.NUMBER_OR_NULL, [0.5, None], [0, False, 'null']),
    (entries.FLAG, [True, False], [0, 1, 'true', None]),
], ids=['count', 'count or null', 'number', 'number or null', 'flag'])
def test_kinds(kind, right, wrong):
  for value in right:
    assert entries.entry({'name': value}, 'name', *kind) is value
  for value in wrong:
    with pytest.raises(InputError, match='^name=.* must be '):
      entries.entry({'name': value}, 'name', *kind)
  with pytest.raises(InputError, match='^name is missing; it must be '):
    entries.entry({}, 'name', *kind)


def test_values_of_strangers_fit_on_a_line():
  with pytest.raises(InputError) as error:
    entries.only({'name': 'line\n' * 10**5}, 'name', 'none')
  assert '\n' not in str(error.value) and len(str(error.value)) < 300


def test_nothing_is_an_empty_container():
  assert entries.of_type({}, 'name', dict) == {}
  assert entries.of_type({'name': None}, 'name', list) == []
  with pytest.raises(InputError, match='must be a JSON array'):
    entries.of_type({'name': {}}, 'name', list)
