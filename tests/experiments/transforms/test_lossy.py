"""Lossy changes do what they say."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from experiments.transforms import lossy
from small_networks import LLAMA, born, trained


def test_changes_are_what_they_say():
  config, key = LLAMA, functools.partial(jax.random.key, 0)
  params = born(config, 1)
  up = lambda changed: np.asarray(changed[1]['blocks']['up']['kernel'])
  before = up((config, params))
  alone = {'blocks': {'up': params['blocks']['up']}}
  pruned = up(lossy.prune(config, alone, key(), 0.3))
  assert np.mean(pruned == 0) == pytest.approx(0.3, abs=0.01)
  quantized = up(lossy.quantize(config, alone, key(), 4))
  assert np.unique(np.round(quantized[0, :, 0], 9)).size <= 15
  noise = up(lossy.add_noise(config, alone, key(), 0.5)) - before
  assert np.std(noise) == pytest.approx(0.5 * before.std(), rel=0.05)
  added = up(lossy.add_low_rank(config, alone, key(), 0.5, rank=3)) - before
  assert np.linalg.matrix_rank(added[0], tol=1e-4) == 3
  assert np.linalg.norm(added[0]) == pytest.approx(0.5 * np.linalg.norm(before[0]), rel=1e-4)
  redrawn = up(lossy.redraw_layers(config, params, key(), 1 / 3))
  assert np.array_equal(redrawn[:2], before[:2])
  assert not np.isclose(redrawn[2], before[2]).any(axis=0).all()
  other = 2 * up(lossy.average(config, params, key(), 0.5)) - before
  assert abs(np.corrcoef(other.ravel(), before.ravel())[0, 1]) < 0.05
  config, deeper = lossy.repeat_layers(LLAMA, params, key(), 0.5)
  assert config.num_layers == 5
  np.testing.assert_array_equal(up((config, deeper)), before[[0, 1, 0, 1, 2]])
  windowed = dataclasses.replace(LLAMA, windows=(7, None, 9))
  config, _ = lossy.repeat_layers(windowed, params, key(), 0.5)
  assert config.windows == (7, None, 7, None, 9)
  config, smaller = lossy.remove_units(LLAMA, params, key(), 0.25)
  assert config.mlp_width == 36 and up((config, smaller)).shape == (3, 32, 36)
  places = [[int(np.flatnonzero((before[0] == column[:, None]).all(axis=0))[0])
             for column in up((config, smaller))[0].T]]
  assert places == [sorted(places[0])]
  own_VD, redrawn_VD = (np.asarray(each['embedding']) for each in (
      params, lossy.redraw_tokens(LLAMA, params, key(), 0.25)[1]))
  is_new_V = (own_VD != redrawn_VD).any(axis=1)
  assert is_new_V[:-(-len(own_VD) // 4)].all() and not is_new_V[-(-len(own_VD) // 4):].any()


def test_strengths_go_from_weak_to_strong():
  for name, (_, strengths) in lossy.DAMAGING.items():
    is_bits = name.startswith('quantize')
    assert list(strengths) == sorted(strengths, reverse=is_bits)


@pytest.mark.parametrize('bits, kind', [(8, 'Q8_0'), (4, 'Q4_0')])
def test_blocks_are_rounded_as_in_gguf_files(bits, kind):
  gguf = pytest.importorskip('gguf')
  params = {'blocks': {name: trained(LLAMA)['blocks'][name] for name in ('up', 'down')}}
  kernel = np.asarray(params['blocks']['up']['kernel'])[1]
  rounded = lossy.quantize_blocks(LLAMA, params, jax.random.key(0), bits)[1]['blocks']
  kind = gguf.GGMLQuantizationType[kind]
  wanted = gguf.dequantize(gguf.quantize(np.ascontiguousarray(kernel.T), kind), kind).T
  np.testing.assert_allclose(rounded['up']['kernel'][1], wanted, rtol=1e-6)
  # Rows of 48 have half a block at their end, whose other half are zeros.
  padded = np.pad(np.asarray(params['blocks']['down']['kernel'])[1].T, ((0, 0), (0, 16)))
  wanted = gguf.dequantize(gguf.quantize(padded, kind), kind)[:, :48].T
  np.testing.assert_allclose(rounded['down']['kernel'][1], wanted, rtol=1e-6)
