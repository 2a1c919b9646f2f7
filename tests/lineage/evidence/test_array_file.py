"""Files come back as they were. What was made up is refused in a line, and nothing in it runs."""

import json
import pickle

import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import array_file

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(path):
  return array_file.read(path, lambda arrays, metadata: (arrays['x'], metadata['number']))


def test_a_file_comes_back_and_appears_whole(tmp_path):
  array_file.write(tmp_path / 'a.safetensors', {'x': X.T}, {'number': 7})
  x, number = read(tmp_path / 'a.safetensors')
  np.testing.assert_array_equal(x, X.T)
  assert number == 7 and [path.name for path in tmp_path.iterdir()] == ['a.safetensors']


class Hostile:
  """A pickle of this makes a file where it is loaded."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), 'w')


def with_metadata(text):
  return safetensors.numpy.save({'x': X}, {'bornbiased': text})


def with_header(header, data=bytes(24)):
  encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
  return len(encoded).to_bytes(8, 'little') + encoded + data


GOOD = {'kind': array_file.KIND, 'schema': array_file.SCHEMA, 'number': 7}
PLACE = {'dtype': 'F32', 'shape': [2, 3], 'data_offsets': [0, 24]}
CONTENTS = {
    'nothing': b'', 'no header': b'abc', 'text': b'a text that is no file of arrays',
    'a header longer than the file': (2**62).to_bytes(8, 'little') + b'{}',
    'an array longer than the file': with_header({'x': PLACE | {'shape': [2**20, 2**40]}}),
    'arrays that overlap': with_header({'x': PLACE, 'y': PLACE}),
    'a deep header': with_header(b'[' * 100_000), 'no metadata': safetensors.numpy.save({'x': X}),
    'metadata that are no JSON': with_metadata('{'), 'a list': with_metadata('[1, 2]'),
    'deep metadata': with_metadata('[' * 100_000),
    'another kind': with_metadata(json.dumps(GOOD | {'kind': 'hidden states'})),
    'another schema': with_metadata(json.dumps(GOOD | {'schema': 2})),
    'a missing part': with_metadata(json.dumps({name: GOOD[name] for name in ('kind', 'schema')})),
    'a missing array': safetensors.numpy.save({'y': X}, {'bornbiased': json.dumps(GOOD)}),
    'NaN': safetensors.numpy.save({'x': X * np.nan}, {'bornbiased': json.dumps(GOOD)}),
    'infinity': safetensors.numpy.save({'x': X + np.inf}, {'bornbiased': json.dumps(GOOD)}),
    'half of a file': with_metadata(json.dumps(GOOD))[:-10],
    'a pickle': None,
}


@pytest.mark.parametrize('content', CONTENTS)
def test_a_damaged_or_hostile_file_is_refused_in_one_line(tmp_path, content):
  path, made = tmp_path / 'a.safetensors', tmp_path / 'made'
  path.write_bytes(CONTENTS[content] or pickle.dumps(Hostile(made)))
  with pytest.raises(InputError, match=f'^{path}') as error:
    read(path)
  assert not made.exists()
  reason = 'not finite' if content in ('NaN', 'infinity') else 'holds no signature'
  assert reason in str(error.value)


def test_what_is_no_file_or_another_one_is_named(tmp_path):
  with pytest.raises(InputError, match='none.safetensors: No such file'):
    read(tmp_path / 'none.safetensors')
  np.savez(tmp_path / 'old.npz', x=np.array([Hostile(tmp_path / 'made')], object))
  with pytest.raises(InputError, match='old.npz holds no signature'):
    read(tmp_path / 'old.npz')
  assert not (tmp_path / 'made').exists()
