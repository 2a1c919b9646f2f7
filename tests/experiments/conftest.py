"""A run that a test goes on with is one of the same code, and theory draws few networks.

What is changed for speed ends with each module, as other folders' tests may follow in the process.
"""

import functools
import os
import sys

from filelock import FileLock
import jax
from jax.sharding import AxisType
import pytest

from bornbiased_jax import plotting
from bornbiased_jax.analysis import chunks
from bornbiased_jax.analysis.theory import experts, finite_width
from bornbiased_jax.models import init_params, sharding
from experiments import activation, scaling
from experiments.adversary import related_networks
from experiments.shared import measurements, session
import experiments.spectra.__main__ as spectra
import programs

# Of the activation's cells, what is compared with theory, once for each.
BLOCKS = ('MLP0', 'relu'), (activation.SATURATED, 'tanh'), ('standard', 'tanh')


@pytest.fixture(autouse=True, scope='session')
def one_commit():
  """The commit when the tests began, whatever is committed meanwhile."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(session, 'commit', functools.cache(session.commit))
    yield


@pytest.fixture(autouse=True, scope='module')
def one_device():
  """Programs that take all devices compile and run in less time on one of them."""
  one, make_mesh = jax.devices()[:1], sharding.make_mesh
  of_seeds = jax.make_mesh((1,), ('seed',), axis_types=(AxisType.Auto,), devices=one)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(chunks, 'all_devices', lambda: of_seeds)
    patch.setattr(sharding, 'make_mesh', lambda *shape, devices=None: (
        make_mesh(*shape, devices=devices) if devices else make_mesh(1, devices=one)))
    yield


@pytest.fixture(autouse=True, scope='module')
def few_networks_of_theory():
  """Theory in a moment, and less exact: no test of a program reads it."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(measurements, 'NUM_NETWORKS', 5)
    patch.setattr(experts, '_NUM_TOKENS', 100)
    means = sys.modules[finite_width.__module__]
    patch.setattr(means, 'NUM_SAMPLES', 16)
    yield
  means._finite_width.cache_clear()


@pytest.fixture(autouse=True, scope='module')
def less():
  """An adversary trains nothing, others little, layers are narrower, and less is compared.

  What is drawn may overlap, as half of the time of a figure goes into its layout.
  """
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(plotting._STYLE, 'figure.constrained_layout.use', False)
    patch.setitem(sys.modules, 'tensorboardX', None)  # As if not installed, since it imports torch.
    patch.setattr(related_networks, 'trained', lambda config, seed, loss: init_params(config, seed))
    patch.setattr(activation, 'GELU_WIDTH', 512)
    # As many steps as before, and so the program that is there.
    patch.setitem(spectra.TUNED, '300 more steps', (2, 1.0, spectra.FEW))
    for name in ('mlp0_cells', 'block_cells'):
      cells = getattr(activation, name)
      patch.setattr(activation, name, lambda settings, cells=cells: [
          cell for cell in cells(settings) if tuple(cell.fields.values()) in BLOCKS])
    patch.setattr(scaling, 'UNITS', {name: scaling.UNITS[name] for name in (
        'gelu', 'centred gelu')})
    yield


@pytest.fixture
def present_commit(monkeypatch):
  """For tests of how the commit is found: it is looked for each time."""
  monkeypatch.setattr(session, 'commit', session.commit.__wrapped__)


@pytest.fixture(scope='session')
def small(tmp_path_factory):
  """The folder of what a program makes at its smallest, run once for all tests and workers."""
  is_worker = 'PYTEST_XDIST_WORKER' in os.environ
  root = tmp_path_factory.getbasetemp()
  root = (root.parent if is_worker else root) / 'small'
  root.mkdir(exist_ok=True)
  done = set()

  def folder(name):
    with FileLock(root / f'{name}.lock'):
      if name not in done and not (root / f'{name}.done').exists():
        programs.run_small(name, root / name, folder)
        (root / f'{name}.done').touch()
      done.add(name)
    return root / name

  return folder
