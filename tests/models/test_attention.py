"""Every kernel agrees with attention by its definition, and the definition agrees with PyTorch."""

import functools
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.models import (
  attention,
  attention_kernels,
  attention_tiles,
  sharding,
  transformer,
)
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.step import start_from, train_step
from small_networks import born

CONFIG = configs.get('tiny_llama2', num_layers=2, num_kv_heads=2, width=32, mlp_width=64,
                     vocab_size=50)
# B, T, H, G, K. The first fits one block and the second has grouped queries. The third needs two
# blocks, one of them padded, and has no batch and no heads that two devices could divide.
SHAPES = [(2, 128, 4, 4, 64), (2, 256, 4, 2, 128), (1, 600, 3, 1, 64)]
TOLERANCE = {'float32': 1e-5, 'bfloat16': 2e-2}

has_gpu = any(device.platform == 'gpu' for device in jax.devices())

# On a machine with one GPU or several:
#   JAX_PLATFORMS=cuda pytest tests/models/test_attention.py -k cudnn
mesh_shape = (2, 1, 2) if jax.device_count() == 4 else (jax.device_count(), 1, 1)
MESH = sharding.make_mesh(*mesh_shape)
splash = functools.partial(attention_kernels.splash, interpret=True)
spread_splash = attention_kernels.Spread(splash, MESH)

KERNELS = {
    'tiled': (attention_tiles.tiled, 'float32'),
    'tiled_bfloat16': (attention_tiles.tiled, 'bfloat16'),
    'splash': (splash, 'float32'),
    'splash_bfloat16': (splash, 'bfloat16'),
    'splash_spread': (spread_splash, 'float32'),
    'cudnn': (attention_kernels.cudnn, 'bfloat16'),
    'cudnn_spread': (attention_kernels.Spread(attention_kernels.cudnn, MESH), 'bfloat16'),
}

def random_inputs(shape, dtype='float32'):
  """Query, key, value and a cotangent; scores have std 2, so that scale and mask matter."""
  B, T, H, G, K = shape
  generator = np.random.default_rng(sum(shape))
  draw = lambda *shape: jnp.asarray(generator.standard_normal(shape), dtype)
  return (2 * draw(B, T, H, K), draw(B, T, G, K), draw(B, T, G, K)), draw(B, T, H * K)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _with_gradient(attend, cap, inputs, cotangent, window, slopes):
  limits = {name: value for name, value in (('window', window), ('cap', cap), ('slopes', slopes))
            if value is not None}
  out, backward = jax.vjp(functools.partial(attend, **limits), *inputs)
  return out, *backward(cotangent)


def with_gradient(attend, inputs, cotangent, window=None, cap=None, slopes=None):
  """The aggregate, and the gradients of query, key and value; `window` is traced."""
  window = None if window is None else jnp.int32(window)
  found = _with_gradient(attend, cap, inputs, cotangent, window, slopes)
  return [np.asarray(x, np.float32) for x in found]


@functools.cache
def by_definition(number):
  """What the definition gives for inputs of the third shape within limits of this number."""
  return with_gradient(attention.plain, *random_inputs(SHAPES[2]), *LIMITS[number])


def assert_close(a, b, tolerance):
  """Compares arrays up to `tolerance` times the largest entry of each."""
  for x, y in zip(a, b, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max())


@pytest.mark.parametrize('kernel, shape', [
    pytest.param(name, shape, marks=pytest.mark.skipif(name.startswith('cudnn') and not has_gpu,
                                                       reason='needs a GPU'))
    for name in KERNELS
    for shape in {'tiled': SHAPES[::2], 'splash_spread': SHAPES[1:2]}.get(name, SHAPES[2:])])
def test_kernels_agree_with_the_definition(kernel, shape):
  attend, dtype = KERNELS[kernel]
  inputs, cotangent = random_inputs(shape, dtype)
  exact = with_gradient(attention.plain, *jax.tree.map(jnp.float32, (inputs, cotangent)))
  assert_close(with_gradient(attend, inputs, cotangent), exact, TOLERANCE[dtype])


def of_pytorch(inputs, cotangent, attend):
  torch = pytest.importorskip('torch')
  theirs = [torch.tensor(np.asarray(x).swapaxes(1, 2), requires_grad=True) for x in inputs]
  out = attend(torch, *theirs).transpose(1, 2).reshape(cotangent.shape)
  out.backward(torch.tensor(np.asarray(cotangent)))
  return [out.detach().numpy(), *(x.grad.transpose(1, 2).numpy() for x in theirs)]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_the_definition_agrees_with_pytorch(shape):
  given = random_inputs(shape)
  expected = of_pytorch(*given, lambda torch, *heads: (
      torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)))
  assert_close(with_gradient(attention.plain, *given), expected, TOLERANCE['float32'])


SLOPES = np.float32([0.4, 0.001, 0.05])
LIMITS = [(1, None, None), (37, None, None), (599, None, None), (600, None, None),
          (attention.UNLIMITED, None, None), (5, 1.5, None), (37, None, SLOPES), (5, 1.5, SLOPES)]


@pytest.mark.parametrize('number', range(len(LIMITS)), ids=lambda number: str(LIMITS[number]))
def test_limits_of_the_definition_agree_with_pytorch(number):
  window, cap, slopes = LIMITS[number]

  def attend(torch, query, key, value):
    scores = query @ key.transpose(2, 3) / query.shape[-1]**0.5
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    row, column = np.indices(scores.shape[2:])
    if slopes is not None:
      scores = scores - torch.tensor(np.float32(slopes[:, None, None] * (row - column)))
    hidden = (column > row) | (row - column >= (window or np.inf))
    weights = torch.softmax(scores.masked_fill(torch.tensor(hidden), -torch.inf), dim=-1)
    return weights @ value.expand(-1, len(query[0]), -1, -1)

  given = random_inputs(SHAPES[2])
  assert_close(by_definition(number), of_pytorch(*given, attend), TOLERANCE['float32'])


@pytest.mark.slow
@pytest.mark.parametrize('attend, numbers', [
    (attention.blocked, (0, 1, 2, 3, 4, 7)), (attention_tiles.tiled, range(7)),
    (attention_kernels.Spread(attention_tiles.tiled, MESH), (5,)),
], ids=['blocked', 'tiled', 'tiled_spread'])
def test_limits_of_kernels_agree_with_the_definition(attend, numbers):
  given = random_inputs(SHAPES[2])
  for number in numbers:
    found = with_gradient(attend, *given, *LIMITS[number])
    assert_close(found, by_definition(number), TOLERANCE['float32'])


@pytest.mark.parametrize('attend', [
    attention.plain, attention_tiles.tiled, attention.blocked,
    attention_kernels.Spread(attention_tiles.tiled, MESH),
], ids=['plain', 'tiled', 'blocked', 'tiled_spread'])
def test_sinks_are_those_of_gpt_oss(attend):
  """Also where they exceed all scores, and their gradients."""
  torch = pytest.importorskip('torch')
  gpt_oss = pytest.importorskip('transformers.models.gpt_oss.modeling_gpt_oss')
  (query, key, value), cotangent = random_inputs((2, 300, 4, 2, 8))
  sink_H = np.float32([-3, 0, 2, 200])
  of_heads = torch.tensor(sink_H, requires_grad=True)
  hidden = torch.ones(300, 300, dtype=torch.bool).triu(1)
  module = types.SimpleNamespace(sinks=of_heads, num_key_value_groups=2, training=False)

  def theirs(torch, *heads):
    out, _ = gpt_oss.eager_attention_forward(
        module, *heads, torch.zeros(300, 300).masked_fill(hidden, -torch.inf), 8 ** -0.5)
    return out.transpose(1, 2)

  expected = of_pytorch((query, key, value), cotangent, theirs) + [of_heads.grad.numpy()]

  @jax.jit
  def ours(cotangent, *given):
    out, backward = jax.vjp(lambda *heads: attend(*heads[:3], sink=heads[3]), *given)
    return out, *backward(cotangent)

  found = ours(cotangent, query, key, value, jnp.asarray(sink_H))
  assert_close(found, expected, TOLERANCE['float32'])


def test_slopes_of_each_head_stay_with_it_on_several_devices():
  inputs, _ = random_inputs((2, 40, 4, 2, 8))
  slopes = attention.alibi_slopes(configs.get('tiny_gpt2', positions='alibi'))
  spread, exact = (jax.jit(attend)(*inputs, slopes=slopes) for attend in (
      attention_kernels.Spread(attention_tiles.tiled, MESH), attention.plain))
  np.testing.assert_allclose(spread, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize('num_heads', [1, 2, 6, 8, 12, 25])
def test_slopes_are_those_of_bloom_and_mpt(num_heads):
  torch = pytest.importorskip('torch')
  bloom = pytest.importorskip('transformers.models.bloom.modeling_bloom')
  mpt = pytest.importorskip('transformers.models.mpt.modeling_mpt')
  config = configs.get('tiny_gpt2', num_heads=num_heads, head_size=2, positions='alibi')
  slopes = attention.alibi_slopes(config)
  # The bias of the last of three positions, as it is of keys at 0, 1 and 2.
  theirs = bloom.build_alibi_tensor(torch.ones(1, 3), num_heads, torch.float32)
  np.testing.assert_allclose(slopes[:, None] * np.arange(3), theirs[:, 0], rtol=1e-6)
  theirs = mpt.build_mpt_alibi_tensor(num_heads, 3)
  np.testing.assert_allclose(-slopes[:, None] * np.arange(2, -1, -1), theirs[:, 0], rtol=1e-6)
  assert attention.alibi_slopes(configs.get('tiny_gpt2')) is None


def test_windows_by_layer():
  config = configs.get('tiny_gpt2', windows=(5, None, 2**31, 1))
  assert attention.windows(config).tolist() == [5, 2**30, 2**30, 1]
  assert attention.windows(configs.get('tiny_gpt2')) is None


@pytest.mark.parametrize('module, name, limits', [
    (attention, 'blocked', []), (attention_tiles, 'tiled', [dict(cap=1.5, slopes=SLOPES)]),
    *[(attention_kernels, name, [dict(window=5), dict(cap=1.5), dict(slopes=SLOPES),
                                dict(sink=SLOPES)])
      for name in ('splash', 'cudnn')]], ids=['blocked', 'tiled', 'splash', 'cudnn'])
def test_kernels_leave_to_the_definition_what_they_cannot(module, name, limits, monkeypatch):
  """A last query alone, and limits: the definition is asked for the same."""
  plain = mock.Mock()
  monkeypatch.setattr(module, 'plain', plain)
  query, key, value = random_inputs((2, 40, 3, 3, 8))[0]
  for asked, given in [(query, each) for each in limits] + [(query[:, -1:], dict(window=5))]:
    assert getattr(module, name)(asked, key, value, **given) is plain.return_value
    heads, left = plain.call_args
    assert all(x is y for x, y in zip(heads, (asked, key, value), strict=True))
    assert {limit: value for limit, value in left.items() if value is not None} == given


def test_weights_are_computed_only_to_be_read():
  tokens = np.arange(12)[None]
  params = born(CONFIG, 0)

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def read(attend, names):
    return transformer.read(CONFIG, params, tokens, names, attend)

  nothing = lambda query_BTHK, *memory: jnp.zeros((*query_BTHK.shape[:2], CONFIG.width))
  assert not np.any(read(nothing, ('value_aggregate',))['value_aggregate'])
  names = ('value_aggregate', 'attention_weights')
  jax.tree.map(np.testing.assert_array_equal, read(nothing, names), read(attention.plain, names))


def test_training_asks_the_kernel_it_is_given():
  recipe = Recipe(num_steps=10, batch_size=4, length=16, accumulation=2, warmup_steps=1)
  state, tokens = start_from(CONFIG, recipe, born(CONFIG, 0)), np.zeros((4, 17), np.int32)
  attend = mock.Mock(wraps=attention.plain)
  jax.eval_shape(functools.partial(train_step, CONFIG, recipe, attend=attend), state, tokens)
  assert {call.args[0].shape[1] for call in attend.call_args_list} == {16}
