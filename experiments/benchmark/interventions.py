"""What an intervention on the value aggregate costs in a training step."""

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import configs
from bornbiased_jax.models import attention_kernels, sharding

from . import timing
from .training import recipe_of, stepper

# Model, batch size, length and rounds, such that a step is long enough for its parts to show.
SIZES = {'cpu': ('tiny_llama2', 16, 128, 15), 'gpu': ('nano_llama2', 32, 2048, 11),
         'tpu': ('nano_llama2', 8, 2048, 11)}


def run() -> list[dict]:
  name, batch_size, length, rounds = SIZES[jax.default_backend()]
  dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'

  def step(intervention):
    config = configs.get(name, dtype=dtype, length=length, intervention=intervention)
    attend = attention_kernels.choose(config, length, sharding.make_mesh(jax.device_count()))
    return stepper(config, recipe_of(batch_size, length), jnp.uint32(42), attend)

  seconds = timing.in_turn({name: step(name) for name in configs.INTERVENTIONS}, rounds)
  return [{'benchmark': f'{name} training step with {intervention!r}',
           'length': length, 'batch_size': batch_size, 'rounds': rounds,
           'milliseconds': 1e3 * np.median(seconds[intervention]),
           'over_none': timing.spread(seconds[intervention] / seconds['none'])}
          for intervention in configs.INTERVENTIONS[1:]]
