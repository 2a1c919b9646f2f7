"""Surgery makes networks of the shapes that it says, and keeps the function where it says so."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from bornbiased_jax.models.initialization import param_shapes
from experiments.transforms import lossy, surgery
import small_networks
from small_networks import GPT2, GROUPED, LLAMA, trained

FAMILIES = pytest.mark.parametrize('config', [GROUPED, GPT2], ids=['grouped', 'gpt2'])
KEY = functools.partial(jax.random.key, 0)


def logits(config, params):
  return small_networks.logits(config, params, small_networks.tokens(4, 20) % config.vocab_size)


def shapes(params):
  return jax.tree.map(np.shape, params)


def which(columns, originals):
  """Which of `originals` each of `columns` is, in order."""
  return [int(np.flatnonzero((originals == column[:, None]).all(axis=0))[0])
          for column in columns.T]


@FAMILIES
@pytest.mark.parametrize('change', [
    functools.partial(surgery.insert_zero_layers, strength=0.5), surgery.order_values,
    surgery.rotate_values, surgery.sort_units], ids=['zero layers', 'order', 'rotate', 'sort'])
def test_the_function_stays(config, change):
  params = trained(config)
  changed, other = change(config, params, KEY())
  np.testing.assert_allclose(logits(changed, other), logits(config, params), atol=2e-4)
  assert any((np.shape(x) != np.shape(y) or not np.allclose(x, y)) for x, y in zip(
      jax.tree.leaves(params), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize('config', [LLAMA, GPT2], ids=['llama', 'gpt2'])
@pytest.mark.parametrize('change, fields', [
    (functools.partial(surgery.cut_channels, strength=0.25), dict(width=24, head_size=8)),
    (functools.partial(surgery.cut_heads, strength=0.5), dict(num_heads=2)),
    (functools.partial(surgery.keep_first_units, strength=0.75), dict(mlp_width=36)),
    (functools.partial(surgery.trim_vocabulary, strength=0.5), dict(vocab_size=35)),
    (functools.partial(surgery.insert_zero_layers, strength=0.5), dict(num_layers=5)),
    (surgery.swap_layers, {}), (surgery.move_layer, {}), (surgery.prune_two_of_four, {})],
    ids=['channels', 'heads', 'units', 'tokens', 'insert', 'swap', 'move', '2:4'])
def test_networks_have_their_shapes(config, change, fields):
  changed, params = change(config, trained(config), KEY())
  assert {name: getattr(changed, name) for name in fields} == fields
  assert shapes(params) == shapes(param_shapes(changed))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_whole_heads_are_cut():
  """A network runs the same without heads that wrote nothing."""
  for config in GROUPED, GPT2:
    params = trained(config)
    cut, smaller = surgery.cut_heads(config, params, KEY(), 0.5)
    before, left = (each['blocks']['output']['kernel'] for each in (params, smaller))
    is_kept = np.stack([(old[:, None] == new[None]).all(axis=2).any(axis=1)
                        for old, new in zip(before, left, strict=True)])
    assert is_kept.sum(axis=1).tolist() == [16] * 3
    output = params['blocks']['output'] | {'kernel': np.where(is_kept[..., None], before, 0)}
    cut_off = params | {'blocks': params['blocks'] | {'output': output}}
    np.testing.assert_allclose(logits(cut, smaller), logits(config, cut_off), atol=1e-5)


def test_what_is_kept_keeps_its_order():
  params = trained(LLAMA)
  before = np.asarray(params['embedding'])
  _, narrower = surgery.cut_channels(LLAMA, params, KEY(), 0.25)
  kept = which(np.asarray(narrower['embedding']), before)
  assert kept == sorted(kept) and len(set(kept)) == 24
  grouped = surgery.cut_channels(GROUPED, trained(GROUPED), KEY(), 0.25)
  assert shapes(grouped[1]) == shapes(param_shapes(grouped[0]))
  _, trimmed = surgery.trim_vocabulary(LLAMA, params, KEY(), 0.5)
  kept = which(np.asarray(trimmed['embedding']).T, before.T)
  assert sorted(kept) == list(range(35)) and kept != sorted(kept)
  np.testing.assert_array_equal(np.asarray(params['head'])[kept], trimmed['head'])
  half = surgery.keep_first_units(LLAMA, params, strength=0.5)[1]['blocks']
  for name, axis in (('up', 2), ('gate', 2), ('down', 1)):
    whole = params['blocks'][name]['kernel']
    np.testing.assert_array_equal(half[name]['kernel'], np.take(whole, range(24), axis))


def test_two_of_four_are_zero():
  """In every kernel, among the inputs of each output, the two of least size."""
  _, params = surgery.prune_two_of_four(GPT2, before := trained(GPT2))
  for name, layer in params['blocks'].items():
    if 'kernel' not in layer:
      continue
    fours, old = (np.moveaxis(np.asarray(each['blocks'][name]['kernel']), 1, -1)
                  for each in (params, before))
    fours, old = (each.reshape(*each.shape[:2], -1, 4) for each in (fours, old))
    assert ((fours == 0).sum(axis=-1) == 2).all(), name
    expected = np.sort(np.abs(old), axis=-1)[..., 2:]
    np.testing.assert_array_equal(np.sort(np.abs(fours), axis=-1)[..., 2:], expected)


def test_layers_are_where_they_should_be():
  config = LLAMA
  params = trained(config)
  other = trained(config, seed=2)
  up = lambda altered: np.asarray(altered[1]['blocks']['up']['kernel'])
  before = up((config, params))
  np.testing.assert_array_equal(up(surgery.swap_layers(config, params)), before[[0, 2, 1]])
  np.testing.assert_array_equal(up(surgery.move_layer(config, params)), before[[1, 2, 0]])
  stitched = up(lossy.stitch(config, params, other, 0.5))
  np.testing.assert_array_equal(stitched, [before[0], *up((config, other))[1:]])
  drawn = surgery.redraw_every_other(config, params, KEY())
  assert shapes(drawn[1]) == shapes(params)
  redrawn = up(drawn)
  np.testing.assert_array_equal(redrawn[::2], before[::2])
  assert not np.isclose(redrawn[1], before[1]).any(axis=0).all()
  deeper = surgery.insert_zero_layers(config, params, strength=0.5)
  np.testing.assert_array_equal(up(deeper), before[[0, 1, 1, 2, 2]])
  for name, layer in deeper[1]['blocks'].items():
    for leaf, x in layer.items():
      silent = [not np.any(each) for each in x]
      assert silent == [False, False, True, False, True] if name in ('output', 'down') else (
          not any(silent)), (name, leaf)


def test_windows_move_with_their_layers():
  config = dataclasses.replace(LLAMA, windows=(7, None, 9))
  moved, _ = surgery.move_layer(config, trained(LLAMA))
  assert moved.windows == (None, 9, 7)


@FAMILIES
def test_values_are_in_the_order_of_singular_values(config):
  """NumPy's singular values of each head's W_V W_O are the squared norms of its new channels."""
  params = trained(config)
  L, D, G, K = config.num_layers, config.width, config.num_kv_heads, config.head_size

  def parts(params, layer, head):
    value = np.asarray(params['blocks']['value']['kernel'])[layer].reshape(D, G, K)[:, head]
    output = np.asarray(params['blocks']['output']['kernel'])[layer].reshape(G, -1, K, D)[head]
    return value, np.concatenate(list(output), axis=-1)

  changed = surgery.order_values(config, params)[1]
  for layer, head in itertools.product(range(L), range(G)):
    value, output = parts(params, layer, head)
    expected = np.linalg.svd(value @ output, compute_uv=False)[:K]
    value, output = parts(changed, layer, head)
    np.testing.assert_allclose((value**2).sum(axis=0), expected, rtol=1e-3)
    np.testing.assert_allclose((output**2).sum(axis=1), expected, rtol=1e-3)
