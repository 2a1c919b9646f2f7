"""A whole comparison of two networks, and their bare forward passes."""

import jax
import jax.numpy as jnp

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage import verdict
from bornbiased_jax.lineage.evidence import signature
from bornbiased_jax.models.batches import default_batch_size
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import read

from . import timing


def comparison() -> list[dict]:
  return [row('tiny_llama2', 2000, 64, rounds=5), row('nano_llama2', 2000, 64, rounds=1)]


def row(name, n, length, rounds) -> dict:
  config, probe, size = configs.get(name), Probe('tokens', n, length), default_batch_size(n, length)
  networks = [init_params(config, seed) for seed in (1, 2)]
  # Like in a signature, the last batch wraps around, so that one program fits all batches.
  inputs = [probe.inputs(config, jnp.arange(first, first + size) % n)
            for first in range(0, n, size)]

  def compare():
    verdict.compare(*(signature.of_network(config, params, probe) for params in networks))
    return 0

  @jax.jit
  def forward(params, tokens_BT):
    with jax.default_matmul_precision('highest'):
      return read(config, params, tokens_BT, ('hidden_last',))

  read_all = lambda: [forward(params, batch) for params in networks for batch in inputs]
  seconds = timing.in_turn({'comparison': compare, 'forward': read_all}, rounds)
  return {'benchmark': f'comparison of two {name}', 'n': n, 'length': length, 'rounds': rounds,
          'seconds': timing.spread(seconds['comparison']),
          'comparison_over_forward': timing.spread(seconds['comparison'] / seconds['forward'])}
