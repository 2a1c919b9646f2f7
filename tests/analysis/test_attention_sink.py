"""Sink rates agree with full attention maps, and losses with those of transformers."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention
from bornbiased_jax.models.initialization import param_shapes
from bornbiased_jax.models.loss import next_token_loss, strided_loss, token_losses
from bornbiased_jax.storage import huggingface
from small_networks import GPT2, GROUPED, LLAMA, random_networks, read, sharpened, tokens


@pytest.mark.slow
def test_the_streamed_rate_is_that_of_full_maps():
  """The 150 positions are no multiple of a block of queries."""
  params, ids = sharpened(GROUPED), tokens()
  maps = np.asarray(read(GROUPED, params, ids, 'attention_weights')['attention_weights'])
  for position in (0, 7, 149):
    weight_NLH = np.moveaxis(maps[..., position:, position].mean(axis=-1), 1, 0)
    threshold = float(np.quantile(weight_NLH, 0.7))
    made = attention_sink.sink_rate(GROUPED, params, ids, position, threshold)
    np.testing.assert_allclose(made.weight_NLH, weight_NLH, atol=1e-6)
    assert made.rate == pytest.approx(np.mean(weight_NLH > threshold), abs=1e-6)
    np.testing.assert_allclose(made.rate_LH, (weight_NLH > threshold).mean(axis=0), atol=1e-6)


@pytest.fixture(scope='module')
def peer(tmp_path_factory):
  """The network of `sharpened(GROUPED)`, as transformers reads it."""
  transformers = pytest.importorskip('transformers')
  path = tmp_path_factory.mktemp('of_transformers') / 'model'
  huggingface.save(path, GROUPED, sharpened(GROUPED))
  return transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation='eager')


@pytest.mark.slow
def test_the_rate_is_that_of_transformers(peer):
  torch = pytest.importorskip('torch')
  params, ids = sharpened(GROUPED), tokens()
  with torch.inference_mode():
    attentions = peer(torch.tensor(ids), output_attentions=True).attentions
  maps = np.stack([layer.numpy() for layer in attentions])
  for position in (0, 16):
    weight_NLH = np.moveaxis(maps[..., position:, position].mean(axis=-1), 1, 0)
    threshold = float(np.quantile(weight_NLH, 0.7))
    made = attention_sink.sink_rate(GROUPED, params, ids, position, threshold)
    np.testing.assert_allclose(made.weight_NLH, weight_NLH, atol=1e-6)
    assert made.rate == np.mean(weight_NLH > threshold)


@pytest.mark.parametrize('length, floor', [(32, 0.127), (64, 0.074), (512, 0.013)])
def test_the_floor_is_that_of_uniform_attention(length, floor):
  assert attention_sink.uniform_weight(length) == pytest.approx(floor, abs=5e-4)
  uniform = np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]
  assert attention_sink.uniform_weight(length, 5) == pytest.approx(uniform[5:, 5].mean())


@pytest.mark.parametrize('intervention, masked, positions', [
    ('none', 0, (0, 7)), ('mask', 149, (149,)), ('mask', 100, (100,))])
def test_the_rate_and_floor_with_windows(intervention, masked, positions):
  config = dataclasses.replace(GROUPED, windows=(5, None, 140), intervention=intervention,
                               intervention_position=masked)
  (params,), ids = random_networks(config, 1), tokens()
  for name in ('query', 'key'):
    params['blocks'][name]['kernel'] *= 0.0
  maps = np.asarray(read(config, params, ids, 'attention_weights')['attention_weights'])
  for position in positions:
    seen = [maps[layer, ..., position:position + (window or 150), position].mean(axis=-1)
            for layer, window in enumerate(config.windows)]
    made = attention_sink.sink_rate(config, params, ids, position)
    np.testing.assert_allclose(made.weight_NLH, np.moveaxis(seen, 0, 1), atol=1e-6)
    assert made.floor == pytest.approx(np.mean(seen), abs=1e-6)


def test_memory_grows_with_length_not_its_square():
  """With whole attention maps, twice the length would take four times the memory."""
  config = dataclasses.replace(LLAMA, length=2048)
  params = param_shapes(config)

  def temporary(measure, length):
    ids = jax.ShapeDtypeStruct((1, length), 'int32')
    return measure.lower(config, params, ids).compile().memory_analysis().temp_size_in_bytes

  losses = functools.partial(token_losses, attend=attention.blocked)
  for measure in (attention_sink._measure_received, jax.jit(losses, static_argnums=0)):
    assert temporary(measure, 2048) < 2.7 * temporary(measure, 1024)


def test_massive_activations():
  (params,), ids = random_networks(LLAMA, 1), tokens()
  first = np.abs(np.asarray(read(LLAMA, params, ids, 'residual')['residual'])[:, :, 0])
  made = attention_sink.diagnostics(LLAMA, params, ids)
  disparity, massive = first.max(-1) / first.mean(-1), first.max(-1) / np.median(first, -1)
  np.testing.assert_allclose(made['disparity_L'], disparity.mean(-1), rtol=1e-5)
  np.testing.assert_allclose(made['massive_L'], massive.mean(-1), rtol=1e-5)
  for name in ('residual', 'value'):
    norm_LNT = np.linalg.norm(read(LLAMA, params, ids, name)[name], axis=-1)
    ratio_LN = norm_LNT[..., 0] / norm_LNT[..., 1:].mean(axis=-1)
    np.testing.assert_allclose(made[f'{name}_ratio_L'], ratio_LN.mean(axis=-1), rtol=1e-5)


def test_effective_rank_is_that_of_the_definition():
  params, ids = sharpened(LLAMA), tokens(3, 40)
  states_LNTD = np.asarray(read(LLAMA, params, ids, 'residual')['residual'], np.float64)
  share = np.linalg.svd(states_LNTD, compute_uv=False)
  share /= share.sum(axis=-1, keepdims=True)
  made = attention_sink.effective_rank(LLAMA, params, ids)
  np.testing.assert_allclose(made, np.exp(stats.entropy(share, axis=-1)).mean(axis=1), rtol=1e-4)


@pytest.mark.parametrize('config', [LLAMA, GPT2], ids=['llama', 'gpt2'])
def test_a_planted_super_neuron_is_found(config):
  """Unit 5 of layer 1 reads the first token's own direction, and writes to three channels."""
  params, ids = jax.tree.map(np.array, random_networks(config, 1)[0]), np.full((4, 20), 7)
  blocks = params['blocks']
  first_layer = params | {'blocks': jax.tree.map(lambda leaf: leaf[:1], blocks)}
  one_layer = dataclasses.replace(config, num_layers=1, length=300)
  normed_D = read(one_layer, first_layer, ids[:1, :1], 'residual')['residual'][0, 0, 0]
  for name in ('up', 'gate') if config.gated_mlp else ('up',):
    blocks[name]['kernel'][1, :, 5] = 20 * normed_D
  blocks['down']['kernel'][1, 5] = np.where(np.isin(np.arange(config.width), (1, 4, 9)), 3, 0)
  made = attention_sink.super_neurons(config, params, ids)
  assert made['activation_LF'][1].argmax() == made['concentration_LF'][1].argmax() == 5
  assert made['activation_LF'][1, 5] > 20 and made['concentration_LF'][1, 5] == pytest.approx(1)
  np.testing.assert_allclose(made['activation_LF'].mean(axis=1), 1, rtol=1e-5)


def test_side_by_side_windows_are_the_training_loss_also_with_a_start_token():
  (params,), ids = random_networks(GROUPED, 1), tokens(1, 131)[0]
  loss = jax.jit(functools.partial(next_token_loss, GROUPED))
  windows = np.stack([ids[:65], ids[64:129]])
  for start_id in (None, 3):
    windows[:, 0] = windows[:, 0] if start_id is None else start_id
    made = strided_loss(GROUPED, params, ids, 64, start_id=start_id)
    assert made == pytest.approx(float(loss(params, windows)), abs=1e-5)


@pytest.mark.parametrize('stride', [40, 64])
def test_strided_loss_is_that_of_transformers(stride, peer):
  """As its documentation advises, labels before the stride are -100."""
  torch = pytest.importorskip('torch')
  params, ids = sharpened(GROUPED), tokens(1, 300)[0]
  total = count = 0
  for start in range(0, 300 - 64, stride):
    window = torch.tensor(ids[None, start:start + 65], dtype=torch.int64)
    labels = window.clone()
    if start:
      labels[:, :65 - stride] = -100
    with torch.inference_mode():
      predicted = int((labels[:, 1:] != -100).sum())
      total, count = total + float(peer(window, labels=labels).loss) * predicted, count + predicted
  made = strided_loss(GROUPED, params, ids, 64, stride)
  assert made == pytest.approx(total / count, abs=1e-4)


@pytest.mark.parametrize('call, message', [
    (lambda params: attention_sink.sink_rate(LLAMA, params, tokens(), 150), 'position=150'),
    (lambda params: strided_loss(LLAMA, params, tokens(1, 64)[0], 64), 'no window'),
    (lambda params: strided_loss(LLAMA, params, tokens(1, 99)[0], 64, start_id=-1),
     'start_id=-1 is not one of'),
    (lambda params: strided_loss(LLAMA, params, tokens(1, 99)[0], 64, 65),
     'stride=65'),
    (lambda params: attention_sink.sink_rate(LLAMA, params, tokens() + LLAMA.vocab_size), 'id '),
    (lambda params: attention_sink.sink_rate(
        LLAMA, jax.tree.map(lambda x: x * np.nan, params), tokens()), 'weights are NaN'),
])
def test_what_cannot_be_measured(call, message):
  with pytest.raises(InputError, match=message):
    call(random_networks(LLAMA, 1)[0])
