"""Random transformers in JAX: the bias they are born with, its cause, and what becomes of it.

There are three doors. **Measure** random networks (`.analysis`, `.configs`): which token of its
vocabulary does each predict most often, and what does theory say? Any architecture, probe and
statistic can take the place of these.

>>> from bornbiased_jax import analysis, configs
>>> config = configs.get('tiny_gpt2', num_layers=2)
>>> probe = analysis.Probe('tokens', num_sequences=300, length=16)
>>> preferred = analysis.predictions(config.vocab_size)
>>> rows = list(analysis.measure(analysis.transformer(config), preferred, probe, seeds=range(4)))
>>> sum(row['top1_frequency'] for row in rows) / 4 > 0.015  # Uniform ids would have about 0.009.
True
>>> limit = analysis.theory.infinite_width(config, length=16)
>>> round(float(limit.inter_cosine_L[-1]), 2)  # The cosine of two sequences.
0.15

**Compare** two models (`.lineage`): does one descend from the other? A name stands for a training
run, a model of `transformers` (`.storage`), or a random model: a preset with a seed.

>>> import jax, numpy as np
>>> from bornbiased_jax import lineage, storage
>>> probe = analysis.Probe('tokens', num_sequences=1000, length=4)
>>> config, params = storage.open('tiny_gpt2:1').load()
>>> copy = jax.tree.map(lambda x: np.float32(np.float16(x)), params)  # Rounded to 16 bits.
>>> subjects = [lineage.Subject(config, each, probe) for each in (params, copy)]
>>> lineage.judge(*subjects)['verdict']
'related'

**Train** networks (`.training`, `.data`, `.models`). `.training.train` makes a whole run, with
checkpoints from which it goes on to the bit; this is one step of it.

>>> from bornbiased_jax import data, training
>>> text = data.load('tinyshakespeare')
>>> config = configs.get('tiny_llama2', num_layers=2, vocab_size=text.vocab_size)
>>> recipe = training.Recipe(num_steps=100, batch_size=4, length=32, warmup_steps=10)
>>> init = jax.jit(training.init_state, static_argnums=(0, 1))
>>> state = init(config, recipe, 42)
>>> ids_BT = data.batch(text.tokens, data_seed=0, step=0, batch_size=4, length=32)
>>> step = jax.jit(training.train_step, static_argnums=(0, 1))
>>> state, metrics = step(config, recipe, state, ids_BT)
>>> round(float(metrics['loss']), 1)  # In nats per byte: log(257) is 5.5.
5.9

Packages import only from those above them: `configs`, `models`, `analysis`, `data`, `storage`,
`training`, `lineage`. The small modules `.errors`, `.fields`, `.files` and `.hosts` serve all of
them, `.environment` serves some, and `.plotting` only programs.
"""

import importlib

__version__ = '2.0.0'
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
