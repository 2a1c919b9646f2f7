"""A model's architecture: its fields, the paper's models as presets, and what names mean.

- `.model`: `ModelConfig`, a frozen dataclass
- `.checks`: what its fields may be, alone and together; activations by name, and scaled RoPE
- `.presets`: the paper's models by name, Pythia's smallest, and small ones for a CPU
- `.names`: `get`, from a name and changed fields to a configuration, and `name_of`, back

None of them imports JAX.
"""

from bornbiased_jax.configs.checks import (
  ACTIVATIONS,
  AT_ONE_POSITION,
  DTYPES,
  INIT_SCHEMES,
  INTERVENTIONS,
  LEARNED,
  POSITIONS,
  REMATS,
  SUBLAYERS,
  RopeScaling,
)
from bornbiased_jax.configs.model import BASE_STD, ModelConfig, from_dict
from bornbiased_jax.configs.names import get, name_of
from bornbiased_jax.configs.presets import PRESETS

__all__ = (
    'ACTIVATIONS', 'AT_ONE_POSITION', 'BASE_STD', 'DTYPES', 'INIT_SCHEMES', 'INTERVENTIONS',
    'LEARNED', 'POSITIONS', 'REMATS', 'SUBLAYERS', 'ModelConfig', 'from_dict', 'get', 'name_of',
    'PRESETS', 'RopeScaling',
)
