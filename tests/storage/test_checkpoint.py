"""Checkpoints come back bit for bit on any mesh, and neither damage nor a full disk loses them."""

import functools
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

from absl import logging as absl_logging
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sharding
from bornbiased_jax.storage import checkpoint
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import init_state
import tiny_runs

# Orbax reads all arrays of a step at once, and leaves when one of them is damaged: the others then
# find its event loop closed.
pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')

RECIPE = Recipe(**tiny_runs.RECIPE)
METADATA = checkpoint.as_metadata(config=tiny_runs.CONFIG, recipe=RECIPE, seed=3)


@functools.cache
def state_of(seed):
  """A state whose numbers are drawn in numpy, where nothing is compiled."""
  shapes = jax.eval_shape(functools.partial(init_state, tiny_runs.CONFIG, RECIPE), seed)
  normal = np.random.default_rng(seed).standard_normal
  return jax.tree.map(lambda leaf: jnp.asarray(normal(leaf.shape).astype(leaf.dtype)), shapes)


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Steps 1, 2 and 3 are the networks of seeds 1, 2 and 3."""
  directory = tmp_path_factory.mktemp('run')
  writer = checkpoint.Writer(directory, keep_steps=(1,))
  for step in (1, 2, 3):
    writer.save(step, *state_of(step)[1:], METADATA)
  writer.close()
  return directory


@pytest.fixture(autouse=True, scope='module')
def no_rest():
  """What orbax left is collected here, and not while tests of another module run."""
  gc.freeze()  # What is there already stays, and need not be looked through after each test.
  yield
  gc.collect()


@pytest.fixture
def copied(saved, tmp_path):
  yield shutil.copytree(saved, tmp_path / 'run')
  gc.collect()  # What Orbax left behind is found here, not in another module's test.


def assert_is_seed(params, seed):
  jax.tree.map(np.testing.assert_array_equal, params, state_of(seed).params)


def test_parameters_come_back_bit_for_bit(saved):
  config, params = checkpoint.load_params(saved)
  assert config == tiny_runs.CONFIG
  assert_is_seed(params, 3)
  assert_is_seed(checkpoint.load_params(saved, step=1)[1], 1)


def test_chosen_steps_and_the_latest_two_stay(tmp_path):
  writer = checkpoint.Writer(tmp_path, keep_steps=(0, 2))
  for step in range(6):
    writer.save(step, *state_of(0)[1:], METADATA)
  writer.close()
  assert checkpoint.steps(tmp_path) == [0, 2, 4, 5]


def test_a_sharded_save_is_loaded_on_one_device(tmp_path):
  writer = checkpoint.Writer(tmp_path)
  mesh, state = tiny_runs.mesh(1, 2, 2), state_of(7)
  writer.save(0, *jax.device_put(state, sharding.shardings(mesh, state))[1:], METADATA)
  writer.close()
  _, params = checkpoint.load_params(tmp_path)
  assert_is_seed(params, 7)
  assert len(params['embedding'].sharding.device_set) == 1


def files(item):
  """Files of an item, as functions of the folder of a step."""
  size_of = lambda path: path.stat().st_size
  return {'array data': lambda step: max((step / item).rglob('d/*'), key=size_of),
          'array index': lambda step: step / item / 'manifest.ocdbt',
          'tree': lambda step: step / item / '_METADATA'}


DAMAGES = {'truncated': lambda path: path.write_bytes(path.read_bytes()[:path.stat().st_size // 2]),
           'emptied': lambda path: path.write_bytes(b''),
           'deleted': lambda path: path.unlink()}


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('file', [*files('params'), 'metadata'])
def test_a_damaged_file_is_told_and_the_step_before_used(copied, caplog, file, damage):
  place = files('params') | {'metadata': lambda step: step / 'run' / 'metadata'}
  path = place[file](copied / '3')
  if (file, damage) == ('tree', 'deleted'):
    pytest.skip('orbax reads the tree from the array index then, and the digest holds')
  DAMAGES[damage](path)
  with caplog.at_level(logging.WARNING, logger=absl_logging.get_absl_logger().name):
    _, params = checkpoint.load_params(copied)
  assert_is_seed(params, 2)
  # asyncio may warn too, of the other arrays that orbax was reading.
  ours = absl_logging.get_absl_logger().name
  warnings = [record.getMessage() for record in caplog.records if record.name == ours]
  assert len(warnings) == 1
  assert 'step 3 is damaged' in warnings[0] and warnings[0].endswith('using step 2')
  assert '\n' not in warnings[0]


def test_one_changed_bit_is_told(copied):
  """Tensorstore itself does not see every changed bit."""
  path = files('params')['array data'](copied / '3')
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  with pytest.raises(InputError, match='step 3 is damaged'):
    checkpoint.load_params(copied, step=3)


def test_an_empty_folder_is_no_step(copied):
  (copied / '4').mkdir()
  assert_is_seed(checkpoint.load_params(copied)[1], 3)


@pytest.mark.parametrize('inside', ['one/config.json', 'pretrained_model/config.json', 'notes.txt'])
def test_a_number_names_other_folders_too(inside, copied):
  """Such as a year, or a step of another program."""
  (copied / '2024' / inside).parent.mkdir(parents=True)
  (copied / '2024' / inside).touch()
  assert checkpoint.steps(copied) == [1, 2, 3]
  shutil.copytree(copied / '3' / 'params', copied / '2024' / 'params')
  assert checkpoint.steps(copied) == [1, 2, 3, 2024]


def test_no_whole_step_is_an_error(copied):
  for step in checkpoint.steps(copied):
    shutil.rmtree(copied / str(step) / 'params')
  with pytest.raises(InputError, match='step 1 is damaged'):
    checkpoint.load_params(copied)


def test_steps_after_one_are_set_aside_and_not_removed(copied):
  checkpoint.set_aside(copied, after=2)
  assert checkpoint.steps(copied) == [1, 2]
  aside, = copied.glob('aside_3_*')
  aside.rename(copied / '3')
  assert_is_seed(checkpoint.load_params(copied)[1], 3)


def test_a_step_in_a_name_is_explained(copied):
  with pytest.raises(InputError, match=f'no such directory; give {copied.name} and step=2'):
    checkpoint.load_params(f'{copied}@2')
  with pytest.raises(InputError, match='no such directory$'):
    checkpoint.load_params(f'{copied}_@2')


@pytest.mark.parametrize('directory, step, message', [
    ('.', 9, 'no step 9; it has 1, 2, 3'), ('nowhere', None, 'no such directory'),
    ('3', None, 'no checkpoint'), ('..', None, 'holds several runs; give one of'),
])
def test_what_is_not_there_is_named(copied, directory, step, message):
  with pytest.raises(InputError, match=message):
    checkpoint.load_params(copied / directory, step)
  if step is None and directory != 'nowhere':
    with pytest.raises(InputError, match=message):
      assert storage.open(str(copied / directory)).config


def test_a_full_disk_is_told_before_anything_is_written(copied, monkeypatch):
  writer = checkpoint.Writer(copied, keep_steps=(1,))
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=1000))
  with pytest.raises(InputError, match=f'cannot save to {copied}: No space left on device'):
    writer.save(4, *state_of(4)[1:], METADATA)
  writer.close()
  assert checkpoint.steps(copied) == [1, 2, 3]


SAVES_ON_A_FULL_DISK = """
import resource, signal, sys
from bornbiased_jax.storage import checkpoint
import test_checkpoint
writer = checkpoint.Writer(sys.argv[1], keep_steps=(1,))
state = test_checkpoint.state_of(4)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000,) * 2)
try:
  writer.save(4, *state[1:], test_checkpoint.METADATA)
  writer.close()
except checkpoint.InputError as error:
  sys.exit(str(error))
"""


def test_a_save_that_fails_halfway_loses_nothing(copied):
  """A limit on file sizes stands in for a disk that fills up, in a process that may die of it."""
  path = os.pathsep.join(filter(None, (os.path.dirname(__file__), *sys.path)))
  done = subprocess.run([sys.executable, '-c', SAVES_ON_A_FULL_DISK, str(copied)],
                        env=os.environ | {'PYTHONPATH': path}, capture_output=True, text=True)
  assert f'cannot save to {copied}' in done.stderr and 'File too large' in done.stderr, done
  assert done.returncode == 1
  assert_is_seed(checkpoint.load_params(copied)[1], 3)
  writer = checkpoint.Writer(copied)
  writer.save(4, *state_of(4)[1:], METADATA)
  writer.close()
  assert_is_seed(checkpoint.load_params(copied)[1], 4)


def edit_story(directory, change):
  path = directory / '3' / 'run' / 'metadata'
  path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.mark.parametrize('change, message', [
    (lambda story: [story], 'step 3 is damaged'), (lambda story: {}, 'step 3 is damaged'),
    (lambda story: story | {'digests': {}}, 'step 3 is damaged'),
    (lambda story: story | {'digests': None}, 'step 3 is damaged'),
    (lambda story: story | {'digests': dict.fromkeys(story['digests'], 'other')},
     'params does not have the digest that was saved with it'),
    (lambda story: story | {'config': 3}, 'configuration this version does not know'),
    (lambda story: story | {'config': story['config'] | {'width': 64}}, 'step 3 is damaged'),
    (lambda story: story | {'config': story['config'] | {'width': -1}}, 'width=-1'),
    (lambda story: story | {'config': story['config'] | {'dropout': .1}}, 'dropout'),
    (lambda story: story | {'schema': 99}, 'schema 99'),
])
def test_a_story_that_does_not_fit_is_refused(copied, change, message):
  edit_story(copied, change)
  with pytest.raises(InputError, match=message):
    checkpoint.load_params(copied, step=3)


def test_the_state_of_the_optimizer_has_a_digest_of_its_own(copied):
  edit_story(copied, lambda story: story | {'digests': story['digests'] | {'opt_state': 'other'}})
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
                      state_of(3).opt_state)
  with pytest.raises(InputError, match='opt_state does not have the digest'):
    checkpoint.restore(copied, lambda metadata: {'opt_state': like}, [3])


@pytest.mark.parametrize('schema', [1, 2])
def test_a_checkpoint_of_an_older_version_is_read_and_said_to_be_unchecked(copied, schema, caplog):
  edit_story(copied, lambda story: {
      name: part for name, part in story.items() if name != 'digests'} | {'schema': schema})
  assert storage.open(str(copied)).config == tiny_runs.CONFIG and not caplog.records
  assert_is_seed(checkpoint.load_params(copied, step=3)[1], 3)
  assert 'step 3 has the checksums of an older version' in caplog.text
