"""The attention sink study at smoke scale: all networks share seeds and data."""

import json
import math
from pathlib import Path
import shutil

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs
from bornbiased_jax.data import corpus, load_tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import checkpoint, huggingface
from bornbiased_jax.training.start import begin
from experiments import pretrain
from experiments.shared import runs
from experiments.shared.settings import resolve
from experiments.text_sinks import __main__ as text_sinks
from experiments.text_sinks import growth, measures, report
import programs
from programs import SMALL, results_of, stop
from small_networks import random_networks, save_run
from small_tokenizers import write_gpt2

pytestmark = pytest.mark.slow

SIZE = 'mlp_width=64,num_heads=2,num_layers=2,width=32'
# For networks of others: as many ids as `write_gpt2` has, or the 257 of bytes, padded.
THEIRS = configs.get(f'tiny_gpt2,{SIZE}', vocab_size=271)


def settings(networks=(), **overrides):
  small = dict(length='16', lengths='16,12', position='4', afterwards='mask') | overrides
  return resolve(text_sinks.Settings, 'smoke', networks, **small)


@pytest.fixture
def study(small):
  return small('text_sinks')


def test_every_network_and_step_has_a_row(study):
  rows = results_of(study)['rows']
  trained = [(row['intervention'], row['seed'], row['step'])
             for row in rows if not row['afterwards']]
  assert trained == [(name, seed, step) for name in ('none', 'mask') for seed in (42, 43)
                     for step in (0, 3, 6)]
  afterwards = [row for row in rows if row['afterwards']]
  assert [(row['intervention'], row['afterwards'], row['seed']) for row in afterwards] == [
      ('none', 'mask', 42), ('none', 'mask', 43)]
  assert all(row['lengths'] == ([12, 16] if row['step'] == 6 else [16]) for row in rows)
  assert all(row['loss'] and np.shape(row['positional_std_LP']) == (2, 5) for row in rows)
  assert all(np.shape(row['first_rate_LH']) == (2, 2) for row in rows)
  assert all(len(row['first_rate_ci95']) == len(row['lengths']) for row in rows)


def test_variants_share_seeds_and_data(study):
  runs = [study / name / 'seed_42' for name in ('none', 'mask')]
  none, mask = (checkpoint.restore(run, lambda metadata: {}, [6])[0] for run in runs)
  names = 'intervention', 'intervention_position', 'intervention_strength'
  assert [none['config'][name] for name in names] == ['none', 0, 2.0]
  assert [mask['config'][name] for name in names] == ['mask', 4, 4.0]
  assert none['data'] == mask['data'] and none['data_seed'] == mask['data_seed']
  jax.tree.map(np.testing.assert_array_equal,
               *(checkpoint.load_params(run, 0)[1] for run in runs))


def test_at_birth_a_masked_position_draws_nobody(study):
  """Apart from the weight on itself, which its floor has: heads attend almost uniformly there."""
  none, row = (next(row for row in results_of(study)['rows']
                    if row['intervention'] == name and row['step'] == 0)
               for name in ('none', 'mask'))
  assert row['position_floor'][-1] > 1.3 * none['position_floor'][-1]
  assert row['position_weight'][-1] - row['position_floor'][-1] == pytest.approx(
      none['position_weight'][-1] - none['position_floor'][-1], abs=1e-2)
  later, = (row for row in results_of(study)['rows'] if row['afterwards'] and row['seed'] == 42)
  assert later['position_floor'][-1] == row['position_floor'][-1]


def test_losses_are_paired_by_seed(study):
  made = results_of(study)
  (text, value), = made['summary'][1]['loss'].items()
  loss = {(row['intervention'], row['seed']): row['loss'][text] for row in made['rows']
          if row['step'] == 6 and not row['afterwards']}
  pairs = np.array([loss['mask', seed] - loss['none', seed] for seed in (42, 43)])
  assert value['difference'] == pytest.approx(pairs.mean(), abs=1e-9)
  assert value['difference_both'] == pytest.approx(pairs, abs=1e-9)
  assert made['summary'][0]['loss'][text]['difference'] == 0


def test_the_base_is_none_wherever_it_stands(study):
  rows = results_of(study)['rows']
  one, other = report.summarize(rows), report.summarize(rows[::-1])
  difference = lambda summary: {(row['intervention'], row['afterwards']): row['loss']
                                for row in summary}
  for case, losses in difference(one).items():
    for text, loss in losses.items():
      assert difference(other)[case][text]['difference'] == pytest.approx(loss['difference'])


@pytest.fixture
def network(tmp_path):
  """One whose tokenizer, a small GPT-2, puts a token before each text."""
  folder = tmp_path
  (folder / 'tokenizer_config.json').write_text('{"add_bos_token": true}')
  tokenizer = load_tokenizer(str(write_gpt2(folder)))
  assert tokenizer.vocab_size == THEIRS.vocab_size
  huggingface.save(folder / 'model', THEIRS, random_networks(THEIRS, 1)[0], tokenizer)
  return folder / 'model', tokenizer


def test_networks_of_others_are_measured_without_training(network, tmp_path):
  """Their sequences begin as the tokenizer says."""
  path, tokenizer = network
  file = tmp_path / 'text.txt'
  file.write_text(Path(__file__).read_text())
  ways = dict(lengths='16', afterwards='amplify', tokenizer=str(path), texts=str(file))
  programs.main(text_sinks, settings([str(path)], **ways), tmp_path / 'out')
  rows = results_of(tmp_path / 'out')['rows']
  assert [(row['intervention'], row['afterwards']) for row in rows] == [
      (str(path), afterwards) for afterwards in (None, 'amplify')]
  written = sorted(path.name for path in (tmp_path / 'out').iterdir())
  assert written == ['figure.png', 'results.json', 'table.md']
  begins_with = f'{tokenizer.end_id} (tokenizer)'
  assert begins_with in (tmp_path / 'out/table.md').read_text()
  for row in rows:
    (loss,) = row['loss'].values()
    assert loss == pytest.approx(math.log(271), abs=0.5)  # Random logits vary by about one.
    assert row['begins_with'] == begins_with
  config, params = huggingface.load(path)
  text = text_sinks.load_texts(settings(**ways))[1]
  begun, plain = settings(start_id=str(tokenizer.end_id), **ways), settings(**ways)
  for each, is_same in ((begun, True), (plain, False)):
    assert (measures.losses(config, params, text, each) == rows[0]['loss']) == is_same
  with pytest.raises(InputError, match=f'--start_id: 5, but .* with {tokenizer.end_id} .tokenizer'):
    programs.main(text_sinks, settings([str(path)], start_id='5', **ways), tmp_path / 'other')


def test_sequences_begin_as_the_run_was_trained(tmp_path):
  save_run(tmp_path / 'run', 0, THEIRS, random_networks(THEIRS, 1)[0],
           data=dict(tokenizer='bytes'), recipe=dict(start_id=7))
  programs.main(text_sinks, settings([str(tmp_path / 'run')], lengths='16', afterwards='none'),
                tmp_path / 'out')
  (row,) = results_of(tmp_path / 'out')['rows']
  assert row['begins_with'] == '7 (run)'
  text = text_sinks.load_texts(settings())[1]
  assert row['loss'] == measures.losses(THEIRS, random_networks(THEIRS, 1)[0], text,
                                        settings(start_id='7'))


def test_a_mixture_has_no_super_neurons():
  """Nothing acts at a position, and a loss beyond what exp can hold has an infinite perplexity."""
  made = settings(interventions='none', afterwards='none', position=None)
  key = dict(zip(text_sinks.FIELDS, ('none', None, 42, made.num_steps), strict=True))
  made = text_sinks.check_position(made, [key])
  row = key | text_sinks.measured(key, f'tiny_moe,{SIZE},vocab_size=257:1',
                                  *text_sinks.load_texts(made), made)
  summary, = report.summarize([row])
  assert not {'super_neuron_L', 'position_rate'} & {*row, *summary}
  shown = report.display(summary | {'loss': {'a': {'mean': 1e4, 'difference': 0.0}}})
  assert shown['perplexity, a'] == 'inf' and shown['nats more, a'] is None


def test_an_intervention_may_begin_with_another_text(study, tmp_path):
  """A checkpoint goes on under an intervention, unless that has parameters of its own."""
  more = dict(batch_size='2', length='16', num_steps='3', keep_steps='none', seeds='42',
              init_from=str(study / 'none'))
  run_of = lambda name: runs.runs_of(
      resolve(pretrain.Settings, 'smoke', intervention=name, **more), tmp_path / name)[0]
  run = run_of('attenuate')
  assert run.config.intervention == 'attenuate' and run.config.length == 16
  _, parent = checkpoint.load_params(study / 'none' / 'seed_42', 6)
  jax.tree.map(np.testing.assert_array_equal, begin(run)[0].params, parent)
  with pytest.raises(InputError, match='has intervention=none, not rmsnorm'):
    begin(run_of('rmsnorm'))


def test_interventions_with_all_their_rows_are_not_trained_again(study, tmp_path):
  """Of these results.json is enough to go on; what was measured leaves its last step."""
  whole = results_of(study)
  stored = whole | {'settings': whole['settings'] | {'checkpoints': 'last'}}
  (tmp_path / 'results.json').write_text(json.dumps(stored))
  stop(tmp_path, 8)  # Of 'none' three steps of two seeds, and both afterwards.
  shutil.copytree(study / 'mask', tmp_path / 'mask')
  flags = SMALL['text_sinks'].flags | {'checkpoints': 'last'}
  programs.main(text_sinks, resolve(text_sinks.Settings, 'smoke', **flags), tmp_path)
  assert not (tmp_path / 'none').exists()
  assert checkpoint.steps(tmp_path / 'mask' / 'seed_43') == [6]
  assert results_of(tmp_path)['summary'] == whole['summary']


def test_what_grows_first():
  """Of two layers only the second grows a sink, at step 20, when its disparity has doubled."""
  row = lambda seed, step, rate, disparity: {
      'seed': seed, 'step': step, 'first_rate_LH': [[0.1, 0.2], [0.0, rate]],
      'disparity_L': [3.0, disparity], 'positional_std_LP': [[4.0, 2.0, 1.0], [1.0, 1.0, 1.0]]}
  rows = [row(1, 0, 0.0, 3.0), row(1, 10, 0.4, 6.1), row(1, 20, 0.6, 6.0),
          row(2, 0, 0.0, 3.0), row(2, 10, 0.0, 5.0), row(2, 20, 0.9, 7.0)]
  made = report.what_grew_first(rows)
  assert made['onsets'][:2] == [
      {'seed': 1, 'layer': 1, 'sink': None, 'disparity': None, 'variance': 0},
      {'seed': 1, 'layer': 2, 'sink': 20, 'disparity': 10, 'variance': None}]
  found = made['networks_with_sinks'], made['disparity_first'], made['variance_first']
  assert found == (2, 1 / 2, 0)  # In the second network both come at one checkpoint.
  exact = stats.beta.ppf([0.025, 0.975], [1, 2], [2, 1])  # Clopper and Pearson, 1 of 2.
  assert made['disparity_first_ci95'] == pytest.approx(exact)


def test_sequences_are_drawn_from_the_text():
  tokens = corpus.load('tinyshakespeare').tokens
  drawn_NT = measures.draw_sequences(tokens, settings())
  text = tokens.tobytes()
  assert drawn_NT.shape == (8, 16)
  assert all(row.astype(tokens.dtype).tobytes() in text for row in drawn_NT)
  begun_NT = measures.draw_sequences(tokens, settings(start_id='9'))
  assert (begun_NT[:, 0] == 9).all()
  np.testing.assert_array_equal(begun_NT[:, 1:], drawn_NT[:, 1:])


def test_growth_is_drawn_as_it_is_stored():
  content = json.loads((growth.FOLDER / 'growth.json').read_text())
  rates = growth.draw(content).axes[0]
  expected = [row['rate'] for row in content['rows']
              if (row['intervention'], row['step']) == ('none', 6000)]
  drawn = [y for line in rates.lines for x, y in line.get_xydata() if x == 6000]
  assert len(expected) == 3 and any(y == pytest.approx(np.mean(expected)) for y in drawn)
