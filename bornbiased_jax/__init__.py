"""Random transformers in JAX: the bias they are born with, its cause, and what becomes of it.

The library is divided into rooms. Each imports only from rooms listed above it,
and `training` and `lineage` do not import each other:

- `.configs`: a model's architecture as a frozen dataclass, and the paper's models as presets
- `.models`: the transformer, its initialization, its loss, and its sharding over devices
- `.analysis`: random inputs, statistics, ensembles of seeds, theory, attention sinks
- `.data`: text as batches of token ids
- `.storage`: checkpoints, and model directories in the format of `transformers`
- `.training`: one training step, and a whole run from its first step to its last
- `.lineage`: fingerprints of networks, SeedPrint and other tests of descent, verdicts

Four small modules serve all rooms: `errors`, `files`, `environment` and `plotting`.

>>> from bornbiased_jax import configs, models
>>> config = configs.get('tiny_gpt2')
>>> models.init_params(config, seed=42)['embedding'].shape
(2048, 128)
"""

import importlib

__version__ = '0.1.0'
_MODULES = (
    'analysis', 'configs', 'data', 'environment', 'lineage', 'models', 'plotting', 'storage',
    'training')


def __dir__():
  return sorted({*globals(), *_MODULES})


def __getattr__(name):
  # Imported when first asked for: whoever wants a configuration need not wait for JAX.
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return importlib.import_module(f'{__name__}.{name}')
