"""Experiments on ensembles at their smallest scale say what they should."""

from flax.traverse_util import flatten_dict
import jax
import numpy as np
import pytest
import scipy

from bornbiased_jax import configs
from bornbiased_jax.analysis import probes
from bornbiased_jax.models.initialization import init_params
from experiments import ablation, coordinates, experts, real_text, scaling
from experiments.shared.settings import resolve
from programs import results_of
from small_networks import random_networks, read

pytestmark = pytest.mark.slow


def test_every_factor_has_a_variant_that_is_the_model_itself():
  settings = resolve(scaling.Settings, 'laptop')
  base = configs.get(settings.config, length=settings.length)
  for factor in set(scaling.FACTORS) - {'width', 'scale'}:
    found = [scaling.config_of(settings, changed)
             for _, changed in scaling.variants(settings, factor)]
    assert any(vars(config) | {'linear_std': 0} == vars(base) | {'linear_std': 0}
               for config in found), factor
    assert len(set(found)) == len(found)


def test_large_models_are_predicted_without_a_network(small):
  *variants, large = results_of(small('scaling'))['summary']
  assert large['factor'] == 'tiny_gpt2' and large['networks'] == 0
  assert 0.1 < large['theory_cosine'] < 0.3 and 0 < large['theory_top1_frequency'] < 1
  theory = {row['value']: row['theory_cosine'] for row in variants}
  assert theory['gelu'] > 5 * theory['centred gelu']
  measured = {row['value']: row['inter_sequence_cosine'] for row in variants}
  assert measured['gelu'] > 0.15 and abs(measured['centred gelu']) < 0.05


def test_layers_are_compared_with_their_own_architecture(small):
  for row in results_of(small('layer_theory'))['summary']:
    assert len(row['layer_cosine']) == len(row['layer_theory']) == 4
    # Three networks that read 40 sequences each differ by a standard deviation of .03.
    assert abs(row['layer_cosine'][-1] - row['layer_theory'][-1]) < 0.1


def test_a_network_with_experts_is_read_by_its_own_routers():
  small_moe = 'tiny_gpt2,num_layers=2,width=32,mlp_width=48,num_experts=4'
  cell, = experts.cells(resolve(experts.Settings, 'smoke', config=small_moe))
  config, (params,) = cell.ensemble.config, random_networks(cell.ensemble.config, 1)
  found = jax.jit(cell.readout)(params, {})
  ids_NT = np.asarray(cell.probe.inputs(config, np.arange(40)))
  states_LNTD = np.asarray(read(config, params, ids_NT, 'mlp_input')['mlp_input'])
  logits_LNTE = np.einsum('lntd,lde->lnte', states_LNTD, params['blocks']['router']['kernel'])
  for layer, chosen_NT in enumerate(logits_LNTE.argmax(axis=-1)):
    share_E = np.bincount(chosen_NT.ravel(), minlength=4) / chosen_NT.size
    assert found['busiest_id'][layer, 0] == share_E.argmax()
    assert found['busiest'][layer, 0] == pytest.approx(share_E.max())
    assert found['idlest'][layer, 0] == pytest.approx(share_E.min())
    halves = [np.bincount(each.ravel(), minlength=4) for each in np.split(chosen_NT, 2)]
    others = halves[1][halves[0].argmax()] + halves[0][halves[1].argmax()]
    assert found['again'][layer, 0] == pytest.approx(others / chosen_NT.size)


def test_text_stands_beside_its_theory(small):
  rows = {row['reads']: row for row in results_of(small('real_text'))['summary']}
  for row in rows.values():
    # Three networks, whose std on text is a fifth of the cosine.
    assert row['cosine'] == pytest.approx(row['law_L'][-1], abs=0.06)
  assert rows['text']['cosine'] > 1.5 * rows['uniform']['cosine']
  assert rows['text']['tokens_alike'] == pytest.approx(17.9256, abs=1e-3)


def test_all_models_read_texts_at_all_lengths_and_the_controls_at_one():
  found = [tuple(cell.fields.values()) for cell in real_text.cells_of(resolve(
      real_text.Settings, lengths='16,64'))]
  of_length = {16: ['text', 'uniform'], 64: ['text', 'shuffled', 'last random', 'uniform']}
  assert found == [
      (name, length, *(('–', '–') if reads == 'uniform' else ('tinyshakespeare', 'bytes')), reads)
      for name in ('tiny_gpt2', 'tiny_llama2') for length, kinds in of_length.items()
      for reads in kinds]


def test_a_variant_has_its_own_architecture_and_fewer_of_the_wide_networks():
  settings = resolve(coordinates.Settings, 'smoke', checks='depth, gpt2,width, alibi',
                     widths='64,128', seeds='0-5')
  wide = [coordinates.cell(settings, 'width, alibi', width) for width in settings.widths]
  assert [(cell.ensemble.config.width, cell.ensemble.config.mlp_width, len(cell.seeds))
          for cell in wide] == [(64, 256, 6), (128, 512, 4)]
  assert all(cell.ensemble.config.positions == 'alibi' for cell in wide)


@pytest.mark.parametrize('name', ['activation', 'amplification'])
def test_summary_stands_beside_its_theory(name, small):
  compared = [row for row in results_of(small(name))['summary'] if row['theory'] is not None]
  assert compared
  for row in compared:
    # Networks of width 256 scatter by .02; what the rows expect is .09 apart.
    assert abs(row['measured'] - row['theory']) < 0.03


def test_descendants_are_told_from_others(small):
  judged = {(row['truth'], row['suspect']): row['verdict']
            for row in results_of(small('real_network'))['rows'] if row['base'] == 'pretrained'}
  assert judged['descendant', 'quantized to 4 bits'] == 'related'
  assert judged['unrelated', 'from scratch, seed 2'] != 'related'


def test_gpt2_contracts_by_its_mlp(small):
  cosine = {row['sublayers']: row['inter_sequence_cosine']
            for row in results_of(small('ablation'))['summary']}
  assert cosine['mlp_only'] > 0.15 and cosine['full'] > 0.15
  assert abs(cosine['attention_only']) < 0.05


def test_ablation_variants_read_the_same_probe_and_share_their_weights():
  variants = ablation.cells(resolve(ablation.Settings, 'smoke'))
  weights = {cell.fields['sublayers']: flatten_dict(jax.jit(cell.ensemble.draw)(1))
             for cell in variants}
  read = lambda cell, seed: cell.probe.inputs(cell.ensemble.config, np.arange(3), seed)
  inputs_BTD = [read(cell, 1) for cell in variants]
  for other_BTD in inputs_BTD[1:]:
    np.testing.assert_array_equal(other_BTD, inputs_BTD[0])
  # All seeds have one embedding and head, and yet vectors of their own.
  assert not np.any(read(variants[0], 2) == inputs_BTD[0])
  full, parts = weights.pop('full'), list(weights.values())
  assert len(parts) == 2 and full.keys() == set().union(*parts)
  for part in parts:
    for leaf in part:
      np.testing.assert_array_equal(part[leaf], full[leaf])


def test_contraction_grows_with_depth_in_gpt2(small):
  rows = [row for row in results_of(small('contraction'))['rows'] if row['config'] == 'tiny_gpt2']
  layers = np.mean([row['layer_cosine'] for row in rows], axis=0)
  assert np.all(np.diff(layers) > 0)


def test_positions_follow_the_closed_forms(small):
  for row in results_of(small('intra_sequence'))['rows']:
    # 20 sequences of 128 channels: the relative error of each std is 1/sqrt(2 · 2560), and two are
    # divided. The theory itself is off by 2 %.
    assert np.all(np.abs(np.array(row['std_over_theory']) - 1) < 5 / np.sqrt(20 * 128) + 0.02)


def test_a_row_of_the_sweep_equals_a_plain_recomputation(small):
  settings, rows = (results_of(small('seed_sweep'))[part] for part in ('settings', 'rows'))
  row = next(row for row in rows if (row['seed'], row['length']) == (2, 8))
  config = configs.get(settings['config'][0])
  params = init_params(config, 2, embedding_seed=0)
  tokens = probes.Probe('tokens', 40, 8).inputs(config, np.arange(40))
  plain = read(config, params, tokens, 'logits', 'hidden_last')
  count = np.bincount(plain['logits'][:, -1].argmax(-1), minlength=config.vocab_size)
  assert (row['top1_id'], row['top1_count']) == (count.argmax(), count.max())
  hidden = np.asarray(plain['hidden_last'])
  direction = (hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)).mean(0)
  assert row['direction_top1_id'] == (np.asarray(params['embedding']) @ direction).argmax()
  np.testing.assert_allclose(row['direction'], direction / np.linalg.norm(direction), atol=6e-5)


def test_the_cosine_of_directions_at_two_lengths_is_a_mean_over_networks(small):
  results = results_of(small('seed_sweep'))
  short, long = ([row['direction'] for row in results['rows'] if row['length'] == length]
                 for length in (4, 8))
  cosine = 1 - np.mean([scipy.spatial.distance.cosine(*pair)
                        for pair in zip(short, long, strict=True)])
  assert 0.5 < cosine < 1
  assert results['summary'][1]['direction_cosine'] == pytest.approx(cosine, abs=1e-3)
  assert 'direction_cosine' not in results['summary'][0]
