"""The notebooks run from top to bottom as they are, and are kept without their outputs."""

from pathlib import Path
import warnings

import pytest

import two_hosts

COLAB = Path(__file__).parents[2] / 'colab'
NOTEBOOKS = sorted(path.name for path in COLAB.glob('*.ipynb'))

pytestmark = pytest.mark.usefixtures('optimized')


@pytest.fixture(params=NOTEBOOKS)
def notebook(request):
  nbformat = pytest.importorskip('nbformat')
  return nbformat.read(COLAB / request.param, as_version=4)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def test_there_are_three():
  assert NOTEBOOKS == ['attention_sinks.ipynb', 'born_biased.ipynb', 'which_seed.ipynb']


def test_kept_without_outputs(notebook):
  assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))
  first = code_cells(notebook)[0].source
  assert 'SOURCE = ' in first and '%pip install' in first and 'jax.devices()' in first


def test_runs_from_top_to_bottom(notebook, monkeypatch):
  nbclient = pytest.importorskip('nbclient')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  # One device, as where most people try it.
  monkeypatch.setenv('XLA_FLAGS', two_hosts.with_devices(1)['XLA_FLAGS'])
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', DeprecationWarning)  # Of the kernel's own libraries.
    where = {'metadata': {'path': str(COLAB)}}
    nbclient.NotebookClient(notebook, timeout=1200, resources=where).execute()
  outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
  pictures = [output for output in outputs if 'image/png' in output.get('data', {})]
  assert len(pictures) >= 2
  assert not [output for output in outputs if output.output_type == 'error']
