"""Numbers of layers stay what they are in any disguise, and are those of their definitions."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax.lineage.comparison.any_basis import layers_test
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.lineage.evidence.features import QUANTILES, invariants
from bornbiased_jax.lineage.thresholds import ALIKE_LAYERS
from bornbiased_jax.storage.layers import in_memory
from experiments.transforms import lossy, preserving, surgery
from small_networks import DEEP, DEEP_GPT2, altered, born, trained
from small_signatures import noise


def numbers(config, params):
  return signature.survey(in_memory(config, params)).invariants


def test_of_heads_they_are_singular_values():
  value_GKD, output_GHKD = noise(1, 2, 4, 16), noise(2, 2, 3, 4, 16)
  found = invariants([{'value': value_GKD, 'output': output_GHKD}])['head']
  matrices = [value_GKD[g].T @ output_GHKD[g, h] for g in range(2) for h in range(3)]
  expected = [np.linalg.svd(each, compute_uv=False)[:4] for each in matrices]
  np.testing.assert_allclose(found, np.quantile(np.log(expected), QUANTILES), rtol=1e-4)


def test_of_units_they_are_sizes_and_cosines():
  gate_UD, up_UD, down_UD = noise(1, 3, 50, 16)
  found = invariants([{'gate': gate_UD[:20], 'up': up_UD[:20], 'down': down_UD[:20]},
                               {'gate': gate_UD[20:], 'up': up_UD[20:], 'down': down_UD[20:]}])
  size = np.linalg.norm(up_UD, axis=1) * np.linalg.norm(down_UD, axis=1)
  quantiles = lambda x: np.quantile(x, QUANTILES)
  np.testing.assert_allclose(found['unit size'], quantiles(np.log(size)), rtol=1e-5)
  cosine = (up_UD * down_UD).sum(axis=1) / size
  np.testing.assert_allclose(found['up and down'], quantiles(cosine), rtol=1e-4, atol=1e-6)
  assert sorted(found) == ['gate and down', 'gate and up', 'gate size', 'unit size', 'up and down']


def test_what_floats_cannot_square_or_tell_from_zero_is_no_number():
  gate_UD, up_UD, down_UD = noise(1, 3, 50, 16)
  down_UD[:5] = 0
  of_units = lambda scale: invariants([
      {'gate': gate_UD, 'up': up_UD / scale, 'down': down_UD * scale}])
  for name, x in of_units(np.float32(1e22)).items():
    np.testing.assert_allclose(x, of_units(1)[name], rtol=1e-4, atol=1e-4)
  value_GKD, output_GHKD = noise(1, 2, 4, 2) @ noise(2, 2, 2, 16), noise(3, 2, 3, 4, 16)
  axes_DD = np.linalg.qr(noise(4, 16, 16))[0]
  of_heads = lambda axes_DD, scale: invariants([{
      'value': value_GKD @ axes_DD / scale, 'output': output_GHKD @ axes_DD * scale}])['head']
  np.testing.assert_allclose(of_heads(axes_DD, np.float32(1e22)), of_heads(np.eye(16), 1),
                             atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('config', [DEEP, DEEP_GPT2], ids=['llama', 'gpt2'])
def test_disguises_change_nothing_and_unrelated_models_do_not_agree(config):
  base = numbers(config, trained(config, 1))
  for name, change in preserving.PRESERVING.items():
    copy = numbers(*altered(change, config, trained(config, 1), jax.random.key(2)))
    assert layers_test(base, copy).statistic > 0.999, name
  network = config, trained(config, 1)
  for i, change in enumerate(preserving.PRESERVING.values()):
    network = altered(change, *network, jax.random.key(i))
  moved = surgery.drop_layer(*network, jax.random.key(0))
  assert layers_test(base, numbers(*moved)).statistic > 0.999
  assert layers_test(base, numbers(*lossy.add_noise(*network, jax.random.key(0), 0.05))
                     ).statistic > ALIKE_LAYERS
  others = [layers_test(base, numbers(config, trained(config, seed))) for seed in (2, 3, 4)]
  assert not any(each.is_alike(8) for each in others)


def test_layers_that_were_chosen_need_more():
  deep = dataclasses.replace(DEEP, num_layers=24)
  a, b = numbers(DEEP, born(DEEP, 1)), numbers(deep, born(deep, 2))
  for result in (layers_test(a, b), layers_test(b, a)):
    assert result.statistic > 0.05 and result.level == 2 * ALIKE_LAYERS
    assert not result.is_alike(8)
