"""The program that compares every pair of a zoo."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import signature
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint, huggingface
from experiments import lineage
from experiments.shared.settings import resolve

ORDER = ['a@0', 'b@0', 'c@0', 'tes', '2:1']
CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)


@pytest.fixture(scope='module')
def zoo(tmp_path_factory):
  """Two networks that are the same, another one, one of more ids, and a folder that is none."""
  folder = tmp_path_factory.mktemp('zoo')
  for name, seed in (('a', 1), ('b', 1), ('c', 2)):
    writer = checkpoint.Writer(folder / name)
    writer.save(0, init_params(CONFIG, seed), {'count': jnp.zeros(3)},
                checkpoint.as_metadata(config=CONFIG))
    writer.close()
  llama = configs.get('tiny_llama2', vocab_size=257)
  huggingface.save(folder / 'bytes', llama, init_params(llama, 1))
  (folder / 'odd').mkdir()
  (folder / 'odd' / 'config.json').write_text('{}')
  return folder


def settings(*networks, **given):
  words = list(map(str, networks))
  return resolve(lineage.Settings, 'smoke', words, **dict(num_sequences='1000') | given)


def test_the_zoo_is_compared_pair_by_pair(zoo, tmp_path, capsys):
  lineage.main(settings(zoo, 'tiny_gpt2:1'), tmp_path / 'out')
  content = json.loads((tmp_path / 'out' / 'results.json').read_text())
  verdicts = {tuple(sorted((row['base'][-3:], row['suspect'][-3:]), key=ORDER.index)):
              row['verdict'] for row in content['rows']}
  small = {'a@0', 'b@0', 'c@0'}
  assert verdicts == {
      ('a@0', 'b@0'): 'related', ('a@0', 'c@0'): 'unrelated', ('b@0', 'c@0'): 'unrelated',
      # Of other families, depths or widths no test of units applies.
      **{(name, '2:1'): 'inconclusive' for name in small},
      **{(name, 'tes'): 'inconclusive' for name in small},
      # Another family with another vocabulary, but drawn from the same seed by the same code.
      ('tes', '2:1'): 'related'}
  assert [each['name'] for each in content['about']] == content['networks']
  assert content['run'].keys() == {'command', 'commit', 'started', 'seconds'}
  assert content['run']['seconds'] > 0
  assert 'left out:' in capsys.readouterr().err
  table = np.genfromtxt(tmp_path / 'out' / 'matrix.csv', delimiter=',', dtype=str)
  assert table.shape == (6, 6)
  place = {name: i for i, name in enumerate(table[0])}
  a, b, c = (next(i for name, i in place.items() if name.endswith(each)) for each in sorted(small))
  assert table[a, a] == 'itself' and float(table[a, b]) == float(table[b, a]) > 5
  assert float(table[a, c]) < 4 and table[a, place['tiny_gpt2:1']] == ''
  assert (tmp_path / 'out' / 'figure.png').exists()
  rows = {row['base'][-3:] + row['suspect'][-3:]: row for row in content['rows']}
  assert rows['a@0b@0']['corrected_p_value'] >= rows['a@0b@0']['p_value']


def test_a_saved_signature_stands_for_its_network_and_brings_the_probe(zoo, tmp_path):
  probe = Probe('tokens', 1000, 3)
  (tmp_path / 'saved').mkdir()
  signature(str(zoo / 'a'), probe).save(tmp_path / 'saved' / 'a.safetensors')
  (tmp_path / 'saved' / 'broken.safetensors').write_bytes(b'nothing')
  lineage.main(settings(tmp_path / 'saved', zoo / 'b', zoo / 'c'), tmp_path / 'out')
  content = json.loads((tmp_path / 'out' / 'results.json').read_text())
  verdicts = {(Path(row['base']).name, Path(row['suspect']).name): row['verdict']
              for row in content['rows']}
  assert verdicts == {('a.safetensors', 'b@0'): 'related', ('a.safetensors', 'c@0'): 'unrelated',
                      ('b@0', 'c@0'): 'unrelated'}
  # Hidden states can be compared, as all networks read what the saved one has read.
  assert all(row['z_of']['SeedPrint'] is not None for row in content['rows'])


def test_what_a_folder_holds_and_cannot_be_read_is_named(zoo, tmp_path, capsys):
  for name, file in (('empty', None), ('alone', 'model.safetensors'), ('pickled', 'old.pth'),
                     ('llama', 'llama.gguf'), ('adapter', 'adapter_config.json'), ('log', 'a.txt'),
                     ('.', 'stray.pt')):
    (tmp_path / 'zoo' / name).mkdir(parents=True, exist_ok=True)
    if file:
      (tmp_path / 'zoo' / name / file).write_text('{"base_model_name_or_path": "nowhere"}')
  given = [str(tmp_path / 'zoo'), f'{zoo}/a@0', f'{zoo}/b@0']
  _, names = lineage.find(given, tmp_path / 'out', Probe('tokens', 1000, 4))
  assert names == [f'{zoo}/a@0', f'{zoo}/b@0']
  said = capsys.readouterr().err.splitlines()
  folder = f'left out: {tmp_path}/zoo'
  assert said.pop(3).startswith(f'{folder}/llama/llama.gguf')
  assert said == [
      f"{folder}/adapter/adapter_config.json: base_model_name_or_path='nowhere' is not found (it "
      'is neither a folder here nor a name of the Hugging Face Hub); give the base yourself, '
      f'BASE+{tmp_path}/zoo/adapter',
      f'{folder}/alone/config.json is missing or unreadable', f'{folder}/empty is empty',
      f'{folder}/pickled has old.pth but no config.json']


@pytest.mark.parametrize('networks, message', [
    (['tiny_gpt2:1'], 'tiny_gpt2:1 alone was found in tiny_gpt2:1; name at least two different'),
    (['tiny_gpt2:1', 'nowhere'], 'nowhere: no such network'),
])
def test_mistakes_are_named(tmp_path, networks, message):
  with pytest.raises(InputError, match=message):
    lineage.main(settings(*networks), tmp_path / 'none')
  assert not (tmp_path / 'none').exists()


def test_a_run_in_a_folder_stands_for_its_latest_checkpoint(tmp_path):
  for step in ('0', '10', '9'):
    (tmp_path / 'study' / 'run' / step).mkdir(parents=True)
  (tmp_path / 'study' / 'other').mkdir()
  (tmp_path / 'study' / 'other' / 'config.json').write_text('{}')
  study = tmp_path / 'study'
  assert lineage.expand(str(study), tmp_path / 'out') == [f'{study}/other', f'{study}/run@10']
  named = [f'{study}/run@{step}' for step in (0, 9, 10)]
  assert lineage.expand(f'{study}/run/', tmp_path / 'out') == named


def test_a_link_back_to_the_folder_is_not_followed(tmp_path):
  (tmp_path / 'zoo' / 'one').mkdir(parents=True)
  (tmp_path / 'zoo' / 'one' / 'config.json').write_text('{}')
  (tmp_path / 'zoo' / 'loop').symlink_to(tmp_path / 'zoo')
  (tmp_path / 'zoo' / 'two').symlink_to(tmp_path / 'zoo' / 'one')
  zoo = tmp_path / 'zoo'
  assert lineage.expand(str(zoo), tmp_path / 'out') == [f'{zoo}/one', f'{zoo}/two']


def test_one_related_pair_among_many_survives_the_correction():
  rows = [{'p_value': 1e-6, 'verdict': 'related', 'z': 9.0, 'identical': False}]
  rows += [{'p_value': p_value, 'verdict': 'unrelated', 'z': 0.0}
           for p_value in np.linspace(0.1, 1, 500)]
  lineage.correct(rows)
  assert rows[0]['verdict'] == 'related' and rows[0]['corrected_p_value'] < 0.01
  rows[0]['p_value'] = 1e-4
  lineage.correct(rows)
  assert rows[0]['verdict'] == 'inconclusive' and 'Among 501 pairs' in rows[0]['reasons'][0]


def test_a_copy_is_related_among_any_number():
  rows = [{'p_value': 0.04, 'verdict': 'related', 'z': 5.0, 'identical': True}]
  rows += [{'p_value': p_value, 'verdict': 'unrelated', 'z': 0.0, 'identical': False}
           for p_value in np.linspace(0.1, 1, 50)]
  lineage.correct(rows)
  assert rows[0]['verdict'] == 'related'
