"""A model's architecture: its fields, the paper's models as presets, and what names mean.

- `.model`: `ModelConfig`, a frozen dataclass
- `.checks`: what its fields may be, each and together; activations by name, and scaled RoPE
- `.names`: the presets; `get`, from a name and changed fields to a configuration; `name_of`, back

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
from bornbiased_jax.configs.names import PRESETS, get, name_of

__all__ = (
    'ACTIVATIONS', 'AT_ONE_POSITION', 'BASE_STD', 'DTYPES', 'INIT_SCHEMES', 'INTERVENTIONS',
    'LEARNED', 'POSITIONS', 'REMATS', 'SUBLAYERS', 'ModelConfig', 'from_dict', 'get', 'name_of',
    'PRESETS', 'RopeScaling',
)
