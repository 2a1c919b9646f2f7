"""Sinks grow on the task, whatever else is measured beside them, and a stopped run goes on."""

import json
import math

import jax
import numpy as np
import pytest

from bornbiased_jax.analysis import attention_sink as analysis
from bornbiased_jax.models import interventions
from bornbiased_jax.training import step as steps
from experiments.attention_sink import __main__ as attention_sink
from experiments.attention_sink import backcopy, growth_report
from experiments.attention_sink import conditions as sink_conditions
from experiments.attention_sink import growth as sink_growth
from experiments.shared.settings import resolve
import programs
from programs import results_of
from small_networks import random_networks

pytestmark = pytest.mark.slow

NONE = sink_conditions.NONE
FACTORS = ['positions']


def settings(**overrides):
  return resolve(attention_sink.Settings, 'smoke', **dict(factors=','.join(FACTORS)) | overrides)


@pytest.fixture
def smoke(small):
  return results_of(small('attention_sink'))


def test_every_network_has_its_own_row(smoke):
  found = [tuple(row[name] for name in attention_sink.KEY) for row in smoke['rows']]
  assert found == [(*condition[:2], later, seed)
                   for condition in sink_conditions.of(FACTORS)
                   for later in ([None, 'amplify'] if condition == NONE else [None])
                   for seed in (0, 1)]
  # Each kind is another network.
  assert len({row['excess'] for row in smoke['rows']}) == len(smoke['rows'])
  for row in smoke['rows']:
    assert 0 <= row['rate'] <= 1 and row['excess'] > 0
    if not row['afterwards']:
      assert row['steps'] == [0, 10, 20]
      assert row['excess_S'][-1] == row['excess'] < row['excess_S'][0]


def test_costs_are_paired_by_seed(smoke):
  rows, summary = smoke['rows'], smoke['summary']
  for fields in summary:
    group = [row for row in rows if growth_report.label_of(row) == growth_report.label_of(fields)]
    base = {row['seed']: row['excess'] for row in rows if growth_report.is_base(row)}
    assert fields['cost'] == pytest.approx(
        np.mean([row['excess'] - base[row['seed']] for row in group]))
  assert summary[0]['cost'] == 0 and summary[0]['cost_both'] == [0, 0]


def test_networks_that_grow_together_take_the_steps_of_one_alone():
  task, made = backcopy.load(), settings()
  config = sink_conditions.config_of(NONE, task.vocab_size, made)
  recipe = attention_sink.recipe_of(made, NONE)
  state = jax.jit(steps.init_state, static_argnums=(0, 1))(config, recipe, 1)
  for step in range(4):
    key = jax.random.fold_in(jax.random.key(made.data_seed), step)
    ids_BT = backcopy.draw(task, key, recipe.batch_size, recipe.length)
    state, _ = jax.jit(steps.train_step, static_argnums=(0, 1))(config, recipe, state, ids_BT)
  *_, (last, networks) = sink_growth.grow(config, recipe, task, [0, 1], start=True,
                                          data_seed=made.data_seed, steps=[0, 4],
                                          advance=lambda steps: None)
  assert last == 4
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), networks[1], state.params)


def test_a_sink_grows_where_a_head_rests():
  task = backcopy.load()
  made = settings(num_steps='300', train_sequences='24', lengths='32,64')
  config = sink_conditions.config_of(NONE, task.vocab_size, made)
  ids_NT, longest_NT = (sink_growth.held_out(task, made, T, start=True) for T in made.lengths)
  *_, (_, networks) = sink_growth.grow(
      config, attention_sink.recipe_of(made, NONE), task, [0], start=True, data_seed=42,
      steps=[300], advance=lambda steps: None)
  found = sink_growth.measure(config, networks[0], task, ids_NT, longest_NT, made)
  assert found['rate'] > 0.8 and found['excess'] < 0.2
  assert len(found['rate_T']) == 2 and min(found['rate_T']) > 0.8
  assert found['weight_resting'] > 2 * found['weight_copying']
  assert found['floor'] == analysis.uniform_weight(32)


def test_losses_are_counted_from_the_entropy():
  """A network that knows nothing but that all characters are possible loses log V."""
  task, made = backcopy.load(), settings(num_sequences='500')
  config = sink_conditions.config_of(NONE, task.vocab_size, made)
  params = jax.tree.map(np.zeros_like, random_networks(config, 1)[0])
  ids_NT = sink_growth.held_out(task, made, 32, start=True)
  expected = math.log(task.vocab_size) - backcopy.entropy(task, 32)
  found = sink_growth.look(config, params, task, ids_NT)
  assert found['excess'] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize('scale', ['smoke', 'laptop', 'paper'])
def test_every_scale_can_run(scale):
  attention_sink.check(resolve(attention_sink.Settings, scale))


def test_a_condition_changes_the_network_or_how_it_is_trained():
  condition, = sink_conditions.FACTORS['weight decay']
  assert sink_conditions.config_of(condition, 66, settings()) == sink_conditions.config_of(
      NONE, 66, settings())
  decays = [attention_sink.recipe_of(settings(), each).weight_decay for each in (NONE, condition)]
  assert decays == [0, 0.1]


def test_controls_have_the_mean_size_of_what_they_control():
  made = settings(length='64', lengths='64,256')
  of = {each.value: sink_conditions.config_of(each, 66, made)
        for each in sink_conditions.FACTORS['intervention']}
  mean = {name: interventions.factors(of[name], np.arange(64)).mean()
          for name in ('amplify', 'gain', 'attenuate', 'damp')}
  assert mean['amplify'] == pytest.approx(mean['gain']) != pytest.approx(mean['attenuate'])
  assert mean['attenuate'] == pytest.approx(mean['damp'])


def test_longer_sequences_are_read_where_the_network_stays_what_it_was():
  made, lengths = settings(), {}
  for condition in [NONE, *sink_conditions.of(['intervention', 'positions'])]:
    if condition.value in ('none', 'gain', 'learned'):
      config = sink_conditions.config_of(condition, 66, made)
      found = sink_growth.by_length(config, random_networks(config, 1)[0],
                                    np.zeros((2, 64), np.int32), [32, 64])
      lengths[condition.value] = [len(values) for values in found.values()]
  assert lengths == {'none': [2, 2], 'gain': [1, 1], 'learned': [1, 1]}


def test_of_several_heads_the_best_is_told():
  weight_NLHT = np.zeros((4, 2, 3, 5))
  weight_NLHT[:3, 1, 2, 0] = 0.9
  sinks = analysis.rate_of(weight_NLHT, sink_conditions.config_of(NONE, 66, settings()), 0)
  assert sinks.rate == 3 / 24
  assert sink_growth.best_head(sinks) == pytest.approx({'rate': 0.75, 'weight': 0.675})


def test_a_network_that_diverged_is_told_and_stops_nothing(smoke, small, tmp_path):
  rows = [row | {'excess': None} if row['seed'] == 1 else row for row in smoke['rows']]
  (tmp_path / 'results.json').write_text(json.dumps(smoke | {'rows': rows}))
  done = programs.run_small('attention_sink', tmp_path, small)
  assert all(row['excess'] is None and row['rate'] is not None for row in done['summary'])
