"""How much of birth decay leaves, what is learned, and where tests stop to find a birth."""

import math

import jax
import numpy as np
from oldest import needs_newer_muon
import optax
import pytest

from bornbiased_jax import data
from bornbiased_jax.lineage import thresholds
from bornbiased_jax.models import init_params
from experiments.forgetting import measurement, recipes, report, training
from experiments.forgetting.training import Cell
from programs import results_of

VOCABULARY = 257
CONFIG = 'tiny_llama2,mlp_width=64,num_heads=2,num_layers=2,width=32'
OPTIMIZERS = [pytest.param(name, marks=needs_newer_muon if name == 'muon' else ())
              for name in training.PEAK_LR]
OF_ONE_CELL = {'config': 'a', 'optimizer': 'adamw', 'steps': 8, 'variant': 'plain'}


def cell(**changed):
  return Cell(**dict(config=CONFIG, optimizer='adamw', forgetting=2.0, steps=40,
                     batch_size=2, length=8) | changed)


def birth_of(cell, seed=0):
  return init_params(training.config_of(cell, VOCABULARY), seed)


def updated(optimizer, params, gradient, steps):
  """The parameters after steps of one gradient, which is divided by the number of the step."""
  @jax.jit
  def step(params, state, i):
    updates, state = optimizer.update(jax.tree.map(lambda x: x / i, gradient), state, params)
    return optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  for i in range(1, steps + 1):
    params, state = step(params, state, np.float32(i))
  return params


@pytest.mark.parametrize('optimizer, variant', [
    *(pytest.param(*each.values, 'plain', marks=each.marks) for each in OPTIMIZERS),
    ('adamw', 'embeddings do not decay'), ('adamw', 'warm restart')])
def test_without_gradients_weights_decay_by_the_law(optimizer, variant):
  own = cell(optimizer=optimizer, variant=variant)
  birth = birth_of(own)
  end = updated(training.optimizer(own), birth, jax.tree.map(np.zeros_like, birth), own.steps)
  lr_M = jax.jit(training.schedule(own))(np.arange(own.steps)).tolist()
  assert own.weight_decay * sum(lr_M) == pytest.approx(2)
  law = math.prod(1 - own.weight_decay * lr for lr in lr_M)
  assert law == pytest.approx(own.survival) and law == pytest.approx(math.exp(-2), rel=0.1)
  kept = ('embedding',) if variant == 'embeddings do not decay' else ()
  for path, w in jax.tree_util.tree_leaves_with_path(end):
    names = [key.key for key in path]
    factor = 1 if names[-1] in ('scale', 'bias') or names[0] in kept else law
    before = birth
    for name in names:
      before = before[name]
    np.testing.assert_allclose(w, factor * before, rtol=1e-4, err_msg='/'.join(names))
  assert measurement.slope(own, birth, end) == pytest.approx(law, rel=1e-4)


def distance(a, b):
  squares = jax.tree.map(lambda x, y: np.sum(np.square(np.subtract(x, y))), a, b)
  return math.sqrt(sum(jax.tree.leaves(squares)))


def reference(cell, decay):
  """The same optimizer, as optax has it in one piece."""
  schedule = training.schedule(cell)
  mask = lambda params: training.decays(cell, params)
  if cell.optimizer == 'adamw':
    return optax.adamw(schedule, 0.9, 0.95, weight_decay=decay, mask=mask)
  if cell.optimizer == 'sgd':
    return optax.chain(optax.sgd(schedule, momentum=0.9))
  stacked = optax.contrib.MuonDimensionNumbers(1, 2)
  matrices = lambda params: jax.tree_util.tree_map_with_path(
      lambda path, _: stacked if path[-1].key == 'kernel' else None, params)
  return optax.contrib.muon(schedule, adam_b1=0.9, adam_b2=0.95, consistent_rms=0.2,
                            weight_decay=decay, muon_weight_dimension_numbers=matrices)


@pytest.mark.slow
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_directions_are_those_of_optax(optimizer):
  # Muon's own decay leaves out what goes to Adam, and SGD has none that is decoupled.
  own = cell(optimizer=optimizer, forgetting=2.0 if optimizer == 'adamw' else 0.0)
  birth = birth_of(own)
  gradient = jax.tree.map(lambda x: np.float32(1e-3) * np.asarray(x), birth_of(own, 1))
  nothing = jax.tree.map(np.zeros_like, gradient)
  assert distance(gradient, nothing) < 1  # It is not clipped.
  expected = updated(reference(own, own.weight_decay), birth, gradient, 6)
  found = updated(training.optimizer(own), birth, gradient, 6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
               found, expected)
  assert distance(expected, birth) > 1e-4


@pytest.mark.slow
def test_segments_are_one_training_and_siblings_share_what_came_before():
  own = cell(steps=8)
  text = data.load('tinyshakespeare')
  birth = birth_of(own)
  mine, other = (training.text(own, text, data_seed) for data_seed in (0, 1))
  assert (mine != other).any() and mine.shape == (4, 2, 2, 9)
  ends = training.grow(own, birth, mine, other, (0, 3))
  config = training.config_of(own, VOCABULARY)
  state = training.first_state(training.optimizer(own), birth)
  in_one = lambda batches: training.advance(
      config, own, state, batches.reshape(8, *batches.shape[2:])).params
  for branch, batches in ((None, mine), (0, other), (3, np.concatenate([mine[:3], other[3:]]))):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                 ends[branch], in_one(batches))
  assert 0 < distance(ends[None], ends[3]) < distance(ends[None], ends[0])


def test_what_is_learned_is_what_decay_does_not_leave():
  own = cell(variant='embeddings do not decay')
  birth = birth_of(own)
  gained = birth_of(own, 1)
  left = lambda path, x: np.float32(
      own.survival if training.is_decayed(own, path) else 1) * np.asarray(x)
  end = jax.tree.map(np.add, jax.tree_util.tree_map_with_path(left, birth), gained)
  found = measurement.learned(own, birth, end)
  for (path, w), own_gain, at_end in zip(
      jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(gained), jax.tree.leaves(end),
      strict=True):
    expected = at_end if path[-1].key in ('scale', 'bias') else own_gain
    np.testing.assert_allclose(w, expected, atol=1e-6)


def row(F, z, seed=0, likeness=0.0, p_value=None, verdict='related'):
  p_value = (1e-9 if z > 5 else 0.5) if p_value is None else p_value
  found = {'z': z, 'likeness': likeness, 'p_value': p_value}
  return OF_ONE_CELL | {
      'forgetting': F, 'pair': 'birth', 'weights': 'end', 'seeds': [seed, seed],
      'tests': dict.fromkeys(report.LISTED, found), 'verdict': verdict}


def test_rows_of_earlier_versions_list_their_tests():
  """In the order of the tests then."""
  listed = {f'{name}_K': list(range(first, first + 8))
            for first, name in ((0, 'z'), (10, 'likeness'), (20, 'p_value'))}
  assert report.result_of(listed, 'SeedPrint') == {'z': 4, 'likeness': 14, 'p_value': 24}
  assert report.result_of(listed, report.LISTED[-1]) == {'z': 7, 'likeness': 17, 'p_value': 27}


def test_a_test_fails_where_its_z_crosses_its_level():
  level = thresholds.related_z(1)
  rows = [row(0, 300), row(2, 20), row(4, 1)]
  share = (math.asinh(20) - math.asinh(level)) / (math.asinh(20) - math.asinh(1))
  assert report.crossing(rows, 'unit order') == pytest.approx(2 + 2 * share)
  assert report.crossing(rows[:2], 'unit order') == math.inf
  assert report.crossing(rows[2:], 'unit order') == 4
  # Where p-values disagree with the level of z, they decide between which F it is.
  late = [row(2, 20), row(4, 4.4, p_value=0.01)]
  assert report.crossing(late, 'unit order') == 4
  # A test without p-value has a level of its likeness; one that is excluded finds nothing.
  alike = [row(0, 9, likeness=0.3), row(2, 9, likeness=-0.1)]
  assert 1 < report.crossing(alike, 'hidden states, any basis') < 2
  assert not report.is_found(row(0, 9, likeness=None), 'units, any order')
  verdicts = [row(0, 20), row(2, 20, verdict='inconclusive')]
  assert report.crossing(verdicts, 'verdict') == 1


def test_half_power_is_the_median_over_networks():
  half, (low, high) = report.half_power(np.array([1.0, 2, 3, 4, 5, 6, 7, math.inf]))
  # With eight, the lowest and the highest enclose the median in 99.2 %, the next ones in 93.0 %.
  assert (half, low, high) == (4, 1, math.inf)
  assert report.half_power(np.arange(20.0)[::-1]) == (9, [5, 14])  # In whichever order.
  assert report.half_power(np.full(8, math.inf)) == (math.inf, [math.inf] * 2)


def test_known_recipes_forget_as_their_schedules_say():
  F = {each['recipe']: each['forgetting'] for each in recipes.table()}
  # A cosine has the mean of its ends: λ (peak + low) / 2 times its steps, and half in warmup.
  assert F['the paper, nano LLaMA'] == pytest.approx(
      0.1 * (198_000 * 3.3e-4 + 2000 * 3e-4), rel=1e-4)
  assert F['Llama 3 405B'] == pytest.approx(0.1 * (1_192_000 * 4.04e-5 + 8000 * 4e-5), rel=1e-4)
  # Pythia's cosine would end at 0, but stays at a tenth of its peak.
  assert 0.1 * 143_000 * 3e-4 < F['Pythia 160M'] < 0.1 * 143_000 * 3.3e-4
  assert F['Pythia 6.9B'] == pytest.approx(F['Pythia 160M'] / 5)
  whole = recipes.KNOWN['OLMo 2 7B, stage 1']._replace(made=None)
  assert F['OLMo 2 7B, stage 1'] < recipes.forgetting(whole)


@pytest.mark.slow
def test_a_run_has_every_pair_and_finds_births_alone(small):
  results = results_of(small('forgetting'))
  keys = [(each['forgetting'], each['pair'], each['weights'], tuple(each['seeds']),
           each.get('branch')) for each in results['rows']]
  pairs = [('birth', (0, 0), None), ('sibling', (0, 0), 0.0), ('birth', (1, 1), None),
           ('sibling', (1, 1), 0.0), ('unrelated', (0, 1), None)]
  assert len(set(keys)) == len(keys) and set(keys) == {
      (F, pair, weights, seeds, branch) for F in (0.0, 2.0)
      for weights in measurement.WEIGHTS for pair, seeds, branch in pairs}
  ends = [each for each in results['rows'] if each['weights'] == 'end']
  assert all(report.is_found(each, 'unit order') == (each['pair'] != 'unrelated')
             for each in ends)
  assert all(each['verdict'] != 'related' for each in results['rows']
             if each['pair'] == 'unrelated')
  for each in results['cells']:
    assert each['slope'] == pytest.approx(each['law'], rel=0.02)
  assert {each['test'] for each in results['summary']} == {*measurement.TESTS, report.VERDICT}
