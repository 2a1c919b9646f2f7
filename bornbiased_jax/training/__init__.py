"""Training from the first step to the last, exact to resume.

- `.step`: one optimizer step as a pure function, and the recipe it follows
- `.adapters`: optimizers that move those parameters alone which an adapter has
- `.run`: all that defines a run
- `.start`: where a run begins: its own folder, a parent, or its seeds
- `.loop`: the steps between, with their checkpoints and evaluations
- `.monitor`: metrics and the progress bar
- `.export`: adapters for PEFT
"""

from bornbiased_jax.training.export import export_adapter
from bornbiased_jax.training.loop import train
from bornbiased_jax.training.run import Run
from bornbiased_jax.training.step import Recipe, TrainState, ensemble_step, init_state, train_step

__all__ = (
    'train', 'export_adapter', 'Run', 'Recipe', 'TrainState', 'ensemble_step', 'init_state',
    'train_step',
)
