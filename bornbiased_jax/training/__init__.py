"""Training from the first step to the last, exact to resume.

- `.recipe`: how a network is trained
- `.step`: one optimizer step as a pure function
- `.adapters`: optimizers that move only the parameters of an adapter
- `.run`: all that defines a run
- `.start`: where a run begins: its own folder, a parent, or its seeds
- `.loop`: the steps between, with their checkpoints and evaluations
- `.monitor`: metrics and the progress bar
- `.export`: adapters for PEFT

Parameters are a tree of arrays, so that any training loop can have them. This one trains networks
of several seeds at once, with an optimizer of one's own:

>>> import functools, jax, optax, numpy as np
>>> from bornbiased_jax import configs, data, models
>>> config, optimizer = configs.get('tiny_gpt2', vocab_size=257), optax.adam(1e-3)
>>> text = data.load('tinyshakespeare').tokens
>>> def step(state, ids_BT):
...   loss, gradient = jax.value_and_grad(
...       lambda params: models.next_token_loss(config, params, ids_BT))(state[0])
...   updates, memory = optimizer.update(gradient, state[1])
...   return (optax.apply_updates(state[0], updates), memory), loss
>>> networks = jax.jit(jax.vmap(functools.partial(models.init_params, config)))(np.arange(2))
>>> states = networks, jax.jit(jax.vmap(optimizer.init))(networks)
>>> step_all = jax.jit(jax.vmap(step, in_axes=(0, None)))
>>> for i in range(3):
...   states, losses = step_all(states, data.batch(text, 0, i, batch_size=2, length=16))
>>> losses.shape
(2,)
"""

from bornbiased_jax.training.export import export_adapter
from bornbiased_jax.training.loop import train
from bornbiased_jax.training.recipe import Recipe
from bornbiased_jax.training.run import Run
from bornbiased_jax.training.step import TrainState, ensemble_step, init_state, train_step

__all__ = (
    'train', 'export_adapter', 'Run', 'Recipe', 'TrainState', 'ensemble_step', 'init_state',
    'train_step',
)
