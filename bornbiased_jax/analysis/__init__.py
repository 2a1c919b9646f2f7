"""What random networks do, measured over ensembles of seeds, and what theory predicts.

The order is that in which the modules are best read:

- `.probes`: random inputs and windows of texts, pure functions of a seed and an index
- `.statistics`: sums over sequences, from which results are computed at the end
- `.preference`: which token a network predicts, and how often
- `.similarity`: how alike its representations are, and the direction they share
- `.ensemble`: a statistic of many networks at once
- `.chunks`: the programs that it runs, for as many networks at a time as fit into memory
- `.simplified`: the paper's simplified layers MLP0 and Attn0, and attention by itself
- `.theory`: what theory says of wide networks, from only their configuration
- `.attention_sink`: attention sinks, and what goes with them

`ensemble.measure` brings them together: it takes an ensemble of networks, a statistic, a
probe and the seeds, and yields one row of results per seed. `frame` makes a table of pandas of
rows.
"""

from bornbiased_jax.analysis import theory
from bornbiased_jax.analysis.attention_sink import (
    SinkRate,
    diagnostics,
    effective_rank,
    positional_std,
    sink_rate,
    super_neurons,
    uniform_weight,
)
from bornbiased_jax.analysis.ensemble import Ensemble, measure, transformer
from bornbiased_jax.analysis.preference import log10_p, predictions, uniform_baseline
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.similarity import inter_sequence, intra_sequence, isotropic_std
from bornbiased_jax.analysis.simplified import StackConfig, attn0, bare_attention, mlp0, stack
from bornbiased_jax.analysis.statistics import (
    Statistic,
    combine,
    expert_loads,
    frame,
    histogram,
    merge,
    p_value_text,
)

__all__ = (
    'theory', 'SinkRate', 'diagnostics', 'effective_rank', 'positional_std', 'sink_rate',
    'super_neurons', 'uniform_weight', 'Ensemble', 'measure', 'transformer', 'log10_p',
    'predictions', 'uniform_baseline', 'Probe', 'inter_sequence', 'intra_sequence',
    'isotropic_std', 'StackConfig', 'attn0', 'bare_attention', 'mlp0', 'stack', 'Statistic',
    'combine', 'expert_loads', 'frame', 'histogram', 'merge', 'p_value_text',
)
