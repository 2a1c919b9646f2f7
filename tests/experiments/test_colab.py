"""The notebooks run from top to bottom, with less to compute, and are kept without outputs."""

import json
from pathlib import Path
import warnings

import pytest

import two_hosts

COLAB = Path(__file__).parents[2] / 'colab'
NOTEBOOKS = sorted(path.name for path in COLAB.glob('*.ipynb'))
# What notebooks say, and what tests put in its place. Of variants of a model, which differ in one
# word, each word is checked, and all compute with the one program of the plain model.
LESS = {
    'attention_sinks.ipynb': {
        'num_steps=400, batch_size=32': 'num_steps=4, batch_size=4',
        'warmup_steps=50': 'warmup_steps=2',
        '(0, 25, 50, 75, 100, 150, 200, 300, 400)': '(0, 4)',
        'intervention=name, **SHAPE)':
            "intervention=name, **SHAPE) and configs.get('tiny_llama2', **SHAPE)",
        'intervention=name, **SMALL)':
            "intervention=name, **SMALL) and configs.get('tiny_llama2', **SMALL)",
        # As the network that `which_seed` reads.
        'vocab_size=20_000, length=128)': 'vocab_size=257, num_layers=2)',
        '0, 20_000)': '0, 257)', '(1), 100,': '(1), 8,',
        'intervention=name), params)': 'intervention=name) and plain, params)'},
    'born_biased.ipynb': {
        "configs.get('tiny_gpt2')": "configs.get('tiny_gpt2', num_layers=2)",
        'num_sequences=1000, length=32': 'num_sequences=20, length=8', 'range(12))': 'range(2))',
        'seeds=range(4))': 'seeds=range(2))',
        'num_sequences=100, length=32': 'num_sequences=20, length=8',
        # Random tokens are read above.
        "('random tokens', analysis.Probe('tokens', 100, 32)), ('Shakespeare', shakespeare)":
            "('Shakespeare', shakespeare),",
        'sublayers=sublayers)': 'sublayers=sublayers) and config',
        'width=768, mlp_width=768': 'width=64, mlp_width=64', 'length=64': 'length=8',
        'activation=activation)':
            'activation=activation) and analysis.StackConfig(layers, width=64, mlp_width=64)',
        "llama = configs.get('tiny_llama2')": "llama = configs.get('tiny_llama2') and config",
        "('mlp',) * 6": "('mlp', 'attention')", 'np.arange(1, 7)': 'np.arange(1, 3)',
        'relu_similarity, 0.0, 6)': 'relu_similarity, 0.0, 2)', 'num_networks=30': 'num_networks=2',
        # What is chosen is the model with experts that follows.
        'LAYERS = 6': 'LAYERS = 1', 'range(6)': 'range(2)',
        'activation=ACTIVATION)': 'activation=ACTIVATION, num_experts=8)',
        'num_experts=8, ': 'num_layers=1, num_experts=8, ',
        'np.arange(220)': 'np.arange(24)',
        '(mixture, probe.length)': '(mixture, probe.length, num_networks=2)'},
    'which_seed.ipynb': {
        'vocab_size=text.vocab_size)': 'vocab_size=text.vocab_size, num_layers=2)',
        "'tiny_llama2:42'": "'tiny_llama2,vocab_size=257,num_layers=2:42'",
        'num_steps=80, batch_size=8, length=64': 'num_steps=4, batch_size=4, length=16',
        'warmup_steps=20': 'warmup_steps=2',
        'num_sequences=2000, length=16': 'num_sequences=300, length=4'},
}


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
  assert all(len(cell.source.splitlines()) <= 25 for cell in code_cells(notebook))


def test_all_install_alike():
  """The first cell is one, and the notebook's badges, picture and archive have one address."""
  notebooks = [json.loads((COLAB / name).read_text())['cells'] for name in NOTEBOOKS]
  assert len({''.join(cells[1]['source']) for cells in notebooks}) == 1
  for name, cells in zip(NOTEBOOKS, notebooks, strict=True):
    head = ''.join(cells[0]['source'])
    assert head.count(f'/blob/main/colab/{name})') == 2
    assert head.count(f"/main/colab/{name.replace('ipynb', 'png')})") == 1
    assert (COLAB / name).with_suffix('.png').exists()


def small(name):
  """A notebook with smaller numbers."""
  notebook = pytest.importorskip('nbformat').read(COLAB / name, as_version=4)
  for said, less in LESS[name].items():
    cells = [cell for cell in code_cells(notebook) if said in cell.source]
    assert cells, f'{said} is no longer there'
    for cell in cells:
      cell.source = cell.source.replace(said, less)
  return notebook


def one_after_another(notebooks):
  """All cells in one notebook, whose kernel forgets all names before each part."""
  v4 = pytest.importorskip('nbformat').v4
  # As if not installed, since it imports torch.
  whole = [v4.new_code_cell("import sys; sys.modules['tensorboardX'] = None"),
           # What is drawn may overlap, as half of the time goes into the layout.
           v4.new_code_cell('from bornbiased_jax import plotting\n'
                            "plotting._STYLE['figure.constrained_layout.use'] = False")]
  for notebook in notebooks:
    whole += [v4.new_code_cell('%reset -f'), *notebook.cells]
  for i, cell in enumerate(whole):
    cell.id = f'cell-{i}'
  return v4.new_notebook(metadata=notebooks[0].metadata, cells=whole)


@pytest.mark.slow
def test_they_run_from_top_to_bottom(monkeypatch):
  nbclient = pytest.importorskip('nbclient')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  # One device, as where most people try it.
  monkeypatch.setenv('XLA_FLAGS', two_hosts.with_devices(1)['XLA_FLAGS'])
  notebooks = list(map(small, NOTEBOOKS))
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', DeprecationWarning)  # Of the kernel's own libraries.
    where = {'metadata': {'path': str(COLAB)}}
    nbclient.NotebookClient(one_after_another(notebooks), timeout=1200, resources=where).execute()
  for notebook in notebooks:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    pictures = [output for output in outputs if 'image/png' in output.get('data', {})]
    assert len(pictures) >= 2
    assert not [output for output in outputs if output.output_type == 'error']
