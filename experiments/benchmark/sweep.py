"""The hot path of the seed sweep, compared with a large matrix product and PyTorch.

Also how its time grows with the number of seeds.
"""

from collections.abc import Callable
import time

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.analysis import ensemble, probes
from bornbiased_jax.models import batches, flops
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import read

from ..shared import measurements
from . import timing

# Length and rounds by model.
MODELS = {'nano_gpt2': (64, 7), 'tiny_gpt2': (32, 41)}


def sweep() -> list[dict]:
  return [*forward_rows('seed_sweep', measurements.preference), seeds_row()]


def small_sweep() -> list[dict]:
  return [{'benchmark': 'seed_sweep of tiny_gpt2'}
          | forward('tiny_gpt2', 8, 2, measurements.preference)]


def contraction() -> list[dict]:
  """With the std of similarities over pairs."""
  return forward_rows('contraction', measurements.contraction)


def forward_rows(experiment: str, statistic: Callable) -> list[dict]:
  return [{'benchmark': f'{experiment} of {name}'} | forward(name, length, rounds, statistic)
          for name, (length, rounds) in MODELS.items()]


def forward(name, length, rounds, statistic):
  """A batch of an experiment (probe, forward pass and statistics) and of its peers, in turn."""
  dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
  config = configs.get(name, dtype=dtype)
  batch_size = batches.default_batch_size(10**6, length)
  probe = probes.Probe('tokens', batch_size, length)
  params = init_params(config, 42)
  product, product_flops = flops.matmul(dtype)
  tokens_BT = probe.inputs(config, jnp.arange(batch_size))
  plain = jax.jit(lambda params: read(config, params, tokens_BT, ('logits_last',)))
  measured = statistic(config)
  step = jax.jit(lambda params: measured.measure(read(
      config, params, probe.inputs(config, jnp.arange(batch_size)), measured.reads)))
  alternatives = {'matmul': product, 'forward': lambda: plain(params),
                  'experiment': lambda: step(params)}
  peer = torch_forward(config, np.asarray(tokens_BT), dtype)
  seconds = timing.in_turn(alternatives | ({'torch': peer} if peer else {}), rounds)
  total = batch_size * flops.forward_flops(config, length, num_logits=1)
  rate = product_flops / np.median(seconds['matmul'])
  share = {part: timing.spread(total / seconds[part] / rate) for part in ('forward', 'experiment')}
  return {
      'length': length, 'batch_size': batch_size, 'dtype': dtype, 'rounds': rounds,
      'matmul_flops_per_s': rate,
      'sequences_per_s': batch_size / np.median(seconds['experiment']),
      'forward_share_of_matmul_rate': share['forward'],
      'experiment_share_of_matmul_rate': share['experiment'],
      'statistics_overhead': timing.spread(seconds['experiment'] / seconds['forward']),
      'peer': "PyTorch's transformers",
      'peer_over_ours': peer and timing.spread(seconds['torch'] / seconds['experiment']),
  }


def torch_forward(config, tokens_BT, dtype):
  """The same by the GPT-2 of `transformers`; None if it is not installed."""
  try:
    import torch
    import transformers
  except ImportError:
    return None
  device = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
  network = transformers.GPT2LMHeadModel(transformers.GPT2Config(
      vocab_size=config.vocab_size, n_positions=config.length, n_embd=config.width,
      n_layer=config.num_layers, n_head=config.num_heads, bos_token_id=0, eos_token_id=0))
  network = network.eval().to(device, getattr(torch, dtype))
  tokens = torch.tensor(tokens_BT, dtype=torch.long, device=device)

  def run():
    with torch.inference_mode():
      hidden = network.transformer(tokens, use_cache=False).last_hidden_state
      logits = network.lm_head(hidden[:, -1])
    if device == 'cuda':
      torch.cuda.synchronize()
    return logits.shape

  return run


def seeds_row():
  """Time per network among 64 networks over that among 4, without compilation."""
  config, probe = configs.get('tiny_gpt2'), probes.Probe('tokens', 640, 32)
  network, statistic = ensemble.transformer(config), measurements.preference(config)

  def seconds_per_network(num_seeds):
    measured = ensemble.measure(
        network, statistic, probe, range(num_seeds), chunk_size=jax.device_count())
    moments = [time.perf_counter() for _ in measured]
    return (moments[-1] - moments[0]) / (num_seeds - 1)

  ratio = np.array([seconds_per_network(64) / seconds_per_network(4) for _ in range(5)])
  return {'benchmark': 'time a seed, 64 seeds over 4', 'rounds': len(ratio),
          'ratio': timing.spread(ratio)}
