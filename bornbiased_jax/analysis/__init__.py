"""What random networks do, measured over ensembles of seeds, and what theory says they do.

  probes           random inputs as a pure function of a seed and an index
  statistics       sums over a network's outputs, from which its results follow
  preference       which token a network predicts, and how often
  similarity       how alike its representations are, and their common direction
  positions        how much they vary at each position
  ensemble         a statistic of many networks at once
  simplified       the paper's layers MLP0 and Attn0
  theory           closed forms for wide networks and long sequences
  attention_sink   sinks, what goes with them, and losses of texts
"""

from bornbiased_jax.analysis.attention_sink import sink_rate, strided_loss
from bornbiased_jax.analysis.ensemble import Network, measure, transformer
from bornbiased_jax.analysis.positions import positional_std
from bornbiased_jax.analysis.preference import predictions, uniform_baseline
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.analysis.similarity import inter_sequence, intra_sequence
from bornbiased_jax.analysis.simplified import StackConfig, stack
from bornbiased_jax.analysis.statistics import Statistic, combine, histogram, merge
