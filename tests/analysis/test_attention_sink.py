"""Sink rates against full attention maps and transformers; interventions do what they say; strided loss."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import configs
from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.loss import next_token_loss
from bornbiased_jax.models.transformer import Transformer
from bornbiased_jax.storage import checkpoint, huggingface

SMALL = dict(num_layers=3, width=32, mlp_width=48, num_heads=4, vocab_size=70, length=300)
LLAMA = configs.get('tiny_llama2', **SMALL)
GROUPED = configs.get('tiny_llama2', **SMALL, num_kv_heads=2)
GPT2 = configs.get('tiny_gpt2', **SMALL)
EVERYWHERE = ('amplify', 'attenuate', 'rmsnorm', 'gain')
AT_ONE = ('mask', 'variance', 'norm')


def tokens(n=6, length=150, seed=0):
  return np.asarray(jax.random.randint(jax.random.key(seed), (n, length), 0, 70))


def read(config, params, ids, *names):
  apply = functools.partial(Transformer(config).apply, names=names, method='read')
  return jax.jit(apply)({'params': params}, ids)


def sharpened(config, seed=1):
  """Parameters whose heads attend to somewhere."""
  params = init_params(config, seed)
  for name in ('query', 'key'):
    params['blocks'][name]['kernel'] *= 3
  return params


@pytest.mark.parametrize('config', [LLAMA, GROUPED, GPT2], ids=['llama', 'grouped', 'gpt2'])
@pytest.mark.parametrize('position', [0, 7, 149])
def test_the_streamed_rate_is_that_of_full_maps(config, position):
  """150 positions are no multiple of a block of queries."""
  params, ids = sharpened(config), tokens()
  maps = np.asarray(read(config, params, ids, 'attention_weights')['attention_weights'])
  weight_NLH = np.moveaxis(maps[..., position:, position].mean(axis=-1), 1, 0)
  threshold = float(np.quantile(weight_NLH, 0.7))
  made = attention_sink.sink_rate(config, params, ids, position, threshold)
  np.testing.assert_allclose(made.weight_NLH, weight_NLH, atol=1e-6)
  assert made.rate == pytest.approx(np.mean(weight_NLH > threshold), abs=1e-6)
  np.testing.assert_allclose(made.rate_LH, (weight_NLH > threshold).mean(axis=0), atol=1e-6)


@pytest.mark.parametrize('config', [LLAMA, GROUPED], ids=['llama', 'grouped'])
def test_the_rate_is_that_of_transformers(config, tmp_path):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  params, ids = sharpened(config), tokens()
  huggingface.save(tmp_path / 'model', config, params)
  peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'model', attn_implementation='eager')
  with torch.inference_mode():
    maps = np.stack([layer.numpy() for layer in peer(torch.tensor(ids), output_attentions=True).attentions])
  weight_NLH = np.moveaxis(maps[..., 0].mean(axis=-1), 1, 0)
  np.testing.assert_allclose(attention_sink.sink_rate(config, params, ids).weight_NLH, weight_NLH, atol=1e-6)


@pytest.mark.parametrize('length, floor', [(32, 0.127), (64, 0.074), (512, 0.013)])
def test_the_floor_is_that_of_uniform_attention(length, floor):
  assert attention_sink.uniform_weight(length) == pytest.approx(floor, abs=5e-4)
  uniform = np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]
  assert attention_sink.uniform_weight(length, 5) == pytest.approx(uniform[5:, 5].mean())


def positional_std(config, params, ids):
  return attention_sink.diagnostics(config, params, ids)['positional_std_LT']


def test_interventions_level_the_positional_variance_at_init():
  """1/sqrt(i) without, flat within 5 % with; many tokens, as those of a few have a mean that does not average away."""
  sizes = dict(num_layers=1, width=512, mlp_width=64, num_heads=4, vocab_size=30000, length=256, linear_std=0.005,
               norm_epsilon=1e-9)
  base = configs.get('tiny_llama2', **sizes)
  params, ids = init_params(base, 1), np.asarray(jax.random.randint(jax.random.key(0), (32, 256), 0, 30000))
  i = np.arange(1, 257)
  plain = positional_std(base, params, ids)[0]
  np.testing.assert_allclose(plain / plain[0], 1 / np.sqrt(i), rtol=0.05)
  for intervention, expected in (('amplify', plain[0]), ('attenuate', plain[0] / 16)):
    config = dataclasses.replace(base, intervention=intervention)
    np.testing.assert_allclose(positional_std(config, params, ids)[0], expected, rtol=0.05)
  config = dataclasses.replace(base, intervention='rmsnorm')
  params = init_params(config, 1)
  assert params['blocks']['value_norm']['scale'].shape == (1, 128)
  np.testing.assert_allclose(positional_std(config, params, ids)[0], 1, rtol=0.05)
  config = dataclasses.replace(base, intervention='gain')
  np.testing.assert_allclose(positional_std(config, params, ids)[0], plain * np.sqrt(i).mean(), rtol=1e-4)


@pytest.mark.parametrize('config', [LLAMA, GROUPED], ids=['llama', 'grouped'])
def test_interventions_at_one_position(config):
  """Change the aggregate there, and as they say; nothing before it."""
  params, ids = sharpened(config), tokens()
  plain = np.asarray(read(config, params, ids, 'value_aggregate')['value_aggregate'])[0, :, 7]
  centre = plain.mean(axis=-1, keepdims=True)
  expected = {'norm': 3 * plain, 'variance': centre + 3 * (plain - centre)}
  for name in AT_ONE:
    changed = dataclasses.replace(config, intervention=name, intervention_position=7, intervention_strength=3.0)
    made = read(changed, params, ids, 'value_aggregate', 'hidden')
    if name in expected:
      np.testing.assert_allclose(made['value_aggregate'][0, :, 7], expected[name], atol=1e-6)
    before = read(config, params, ids, 'hidden')['hidden']
    np.testing.assert_array_equal(made['hidden'][:, :7], before[:, :7])
    assert np.abs(made['hidden'][:, 7] - before[:, 7]).max() > 1e-4


@pytest.mark.parametrize('config', [LLAMA, GROUPED], ids=['llama', 'grouped'])
def test_a_masked_position_attends_to_itself_alone(config):
  params, ids = sharpened(config), tokens()
  changed = dataclasses.replace(config, intervention='mask', intervention_position=7)
  made = read(changed, params, ids, 'attention_weights', 'value_aggregate')
  np.testing.assert_array_equal(made['attention_weights'][:, :, :, 7], np.broadcast_to(np.eye(150)[7], (3, 6, 4, 150)))
  # What fused kernels leave to a replacement of the aggregate is what masked weights give.
  fused = read(changed, params, ids, 'value_aggregate')['value_aggregate']
  np.testing.assert_allclose(fused, made['value_aggregate'], atol=1e-5)
  weight = attention_sink.received(changed, params, ids)
  maps = np.moveaxis(np.asarray(made['attention_weights']), 1, 0)
  np.testing.assert_allclose(weight[..., 7], maps[..., 7:, 7].mean(axis=-1), atol=1e-6)


@pytest.mark.parametrize('name', [*EVERYWHERE, *AT_ONE])
def test_the_last_position_alone_is_the_last_of_all(name):
  config = dataclasses.replace(GROUPED, intervention=name, intervention_position=149)
  params, ids = init_params(config, 1), tokens()
  np.testing.assert_allclose(read(config, params, ids, 'hidden_last')['hidden_last'],
                             read(config, params, ids, 'hidden')['hidden'][:, -1], atol=2e-5)


@pytest.mark.parametrize('name', [*EVERYWHERE, *AT_ONE])
def test_interventions_work_with_other_kernels_and_survive_a_checkpoint(name, tmp_path):
  config = dataclasses.replace(GROUPED, intervention=name, intervention_position=3)
  params, ids = init_params(config, 1), tokens(2, 128)
  kernel = lambda *heads: attention.splash(*heads, interpret=True)
  by_kernel = Transformer(config, kernel).apply({'params': params}, ids, ('hidden',), method='read')['hidden']
  np.testing.assert_allclose(by_kernel, read(config, params, ids, 'hidden')['hidden'], atol=2e-4)
  writer = checkpoint.Writer(tmp_path / 'run')
  writer.save(1, params, {'count': jnp.zeros(1)}, checkpoint.as_story(config=config))
  writer.close()
  restored_config, restored = checkpoint.load_params(tmp_path / 'run')
  assert restored_config == config
  jax.tree.map(np.testing.assert_array_equal, restored, params)
  with pytest.raises(InputError, match=f"intervention='{name}'"):
    huggingface.save(tmp_path / 'model', config, params)


@pytest.mark.parametrize('wrong, message', [
    (dict(intervention='double'), "intervention='double' is not one of none, amplify"),
    (dict(intervention_position=300), 'not a position from 0 to 299'),
    (dict(intervention_strength=0.0), 'intervention_strength=0.0 must be a positive number'),
])
def test_impossible_interventions(wrong, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(LLAMA, **wrong)


def test_memory_grows_with_length_not_its_square():
  """Of sink rates and losses; with whole attention maps twice the length takes four times as much."""
  config = dataclasses.replace(LLAMA, length=2048)
  params = jax.eval_shape(lambda: init_params(config, 1))

  def temporary(measure, length):
    ids = jax.ShapeDtypeStruct((1, length), 'int32')
    return measure.lower(config, params, ids).compile().memory_analysis().temp_size_in_bytes

  for measure in (attention_sink._received, attention_sink._losses):
    assert temporary(measure, 2048) < 2.7 * temporary(measure, 1024)


def test_massive_activations():
  params, ids = init_params(LLAMA, 1), tokens()
  first = np.abs(np.asarray(read(LLAMA, params, ids, 'residual')['residual'])[:, :, 0])
  made = attention_sink.diagnostics(LLAMA, params, ids)
  np.testing.assert_allclose(made['disparity_L'], (first.max(-1) / first.mean(-1)).mean(-1), rtol=1e-5)
  np.testing.assert_allclose(made['massive_L'], (first.max(-1) / np.median(first, -1)).mean(-1), rtol=1e-5)


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
  params, ids = init_params(config, 1), np.full((4, 20), 7)
  normed_D = read(dataclasses.replace(config, num_layers=1, length=300), params | {
      'blocks': jax.tree.map(lambda leaf: leaf[:1], params['blocks'])}, ids[:1, :1], 'residual')['residual'][0, 0, 0]
  for name in ('up', 'gate') if config.gated_mlp else ('up',):
    params['blocks'][name]['kernel'] = params['blocks'][name]['kernel'].at[1, :, 5].set(20 * normed_D)
  column_D = jnp.zeros(config.width).at[jnp.array([1, 4, 9])].set(3.0)
  params['blocks']['down']['kernel'] = params['blocks']['down']['kernel'].at[1, 5].set(column_D)
  made = attention_sink.super_neurons(config, params, ids)
  assert made['activation_LF'][1].argmax() == made['concentration_LF'][1].argmax() == 5
  assert made['activation_LF'][1, 5] > 20 and made['concentration_LF'][1, 5] == pytest.approx(1)
  np.testing.assert_allclose(made['activation_LF'].mean(axis=1), 1, rtol=1e-5)


def test_mlp_hidden_is_what_the_down_projection_reads():
  params, ids = init_params(GPT2, 1), tokens(2, 9)
  out = read(GPT2, params, ids, 'mlp_hidden', 'residual')
  last = jax.tree.map(lambda leaf: leaf[-1], params['blocks']['down'])
  silenced = jax.tree.map(jnp.copy, params)
  for name in ('kernel', 'bias'):
    silenced['blocks']['down'][name] = silenced['blocks']['down'][name].at[-1].set(0)
  before = read(GPT2, silenced, ids, 'residual')['residual'][-1]
  np.testing.assert_allclose(out['residual'][-1] - before, out['mlp_hidden'][-1] @ last['kernel'] + last['bias'],
                             atol=1e-5)


def test_side_by_side_windows_are_the_training_loss():
  params, ids = init_params(LLAMA, 1), tokens(1, 131)[0]
  windows = np.stack([ids[:65], ids[64:129]])
  assert attention_sink.strided_loss(LLAMA, params, ids, 64) == pytest.approx(
      float(next_token_loss(LLAMA, params, windows)), abs=1e-5)


@pytest.mark.parametrize('stride', [16, 40, 64])
def test_strided_loss_is_that_of_transformers(stride, tmp_path):
  """The recipe of its documentation: labels before the stride are -100."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  params, ids = sharpened(LLAMA), tokens(1, 300)[0]
  huggingface.save(tmp_path / 'model', LLAMA, params)
  peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'model')
  total = count = 0
  for start in range(0, 300 - 64, stride):
    window = torch.tensor(ids[None, start:start + 65], dtype=torch.int64)
    labels = window.clone()
    if start:
      labels[:, :65 - stride] = -100
    with torch.inference_mode():
      predicted = int((labels[:, 1:] != -100).sum())
      total, count = total + float(peer(window, labels=labels).loss) * predicted, count + predicted
  assert attention_sink.strided_loss(LLAMA, params, ids, 64, stride) == pytest.approx(total / count, abs=1e-4)


@pytest.mark.parametrize('call, message', [
    (lambda params: attention_sink.sink_rate(LLAMA, params, tokens(), 150), 'position=150'),
    (lambda params: attention_sink.strided_loss(LLAMA, params, tokens(1, 64)[0], 64), 'no window'),
    (lambda params: attention_sink.strided_loss(LLAMA, params, tokens(1, 99)[0], 64, 65), 'stride=65'),
])
def test_what_cannot_be_measured(call, message):
  with pytest.raises(InputError, match=message):
    call(init_params(LLAMA, 1))
