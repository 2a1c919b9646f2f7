"""A whole SeedPrint comparison of two networks against their bare forward passes."""

import functools

import jax
import jax.numpy as jnp

from bornbiased_jax import configs, fingerprints, verdict
from bornbiased_jax.ensemble import default_batch_size
from bornbiased_jax.initialization import init_params
from bornbiased_jax.probes import Probe
from bornbiased_jax.transformer import Transformer
from experiments.benchmarks import timing


def run() -> list[dict]:
  # Of nano networks each alternative takes minutes: their compilation, of one program each, is counted in.
  return [row('tiny_llama2', 2000, 64, rounds=5), row('nano_llama2', 2000, 64, rounds=1, warm_up=False)]


def row(name, n, length, rounds, warm_up=True) -> dict:
  config, probe = configs.get(name), Probe('tokens', n, length)
  networks = [init_params(config, seed) for seed in (1, 2)]
  inputs = [probe.inputs(config, first + jnp.arange(min(size, n - first)))
            for size in [default_batch_size(n, length)] for first in range(0, n, size)]

  def compare():
    verdict.compare(*(fingerprints.fingerprint(params, config, probe) for params in networks))
    return 0

  forward = _forward(config)
  seconds = timing.in_turn({'comparison': compare, 'forward': lambda: [forward(params, batch) for params in networks
                                                                       for batch in inputs]}, rounds, warm_up)
  return {'benchmark': f'comparison of two {name}', 'n': n, 'length': length, 'rounds': rounds, 'warm_up': warm_up,
          'seconds': timing.spread(seconds['comparison']),
          'comparison_over_forward': timing.spread(seconds['comparison'] / seconds['forward'])}


def _forward(config):
  read = functools.partial(Transformer(config).apply, method='read')

  @jax.jit
  def forward(params, tokens_BT):
    with jax.default_matmul_precision('highest'):
      return read({'params': params}, tokens_BT, ('hidden_last',))

  return forward
