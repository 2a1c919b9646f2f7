"""Does one model descend from another?

Data flow one way. `storage.open` says which model a name means; its signature holds all that
tests read of it; tests compare two signatures; the verdict combines the tests.

- `.layouts`, `.layout_names`, `.layout_shapes`, `.layout_stacks`: where units and heads lie among
  tensors, by name
- `.evidence`: hidden features, hidden states and tensors of a model, and the signature of all
- `.comparison`: the tests of two signatures; `.comparison.every_test` lists them
- `.thresholds`: every level at which a test or a verdict turns
- `.verdict`, `.sentences`: what may be said about two models, as JSON and in words
- `.networks`: signatures and verdicts of models by name
- `.baselines`: other fingerprints and published tests, to compare with
"""

from bornbiased_jax.lineage.baselines.matched_units import matched_units_test
from bornbiased_jax.lineage.baselines.methods import (
  METHODS,
  Method,
  Score,
  Subject,
  judge,
  rank_p_value,
)
from bornbiased_jax.lineage.baselines.published import PublishedResult, default_k, published_test
from bornbiased_jax.lineage.baselines.similarities import ics, intrinsic, norm_gains, pcs, reef
from bornbiased_jax.lineage.comparison.rank_correlation import kendall_matrix, kendall_tau
from bornbiased_jax.lineage.comparison.result import TestResult
from bornbiased_jax.lineage.comparison.seedprint import (
  CalibratedResult,
  calibrated_test,
  norm_trace,
)
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates
from bornbiased_jax.lineage.evidence.signature import Signature
from bornbiased_jax.lineage.networks import compare_networks, look_up, signature, states
from bornbiased_jax.lineage.verdict import compare

__all__ = (
    'matched_units_test', 'METHODS', 'Method', 'Score', 'Subject', 'judge', 'rank_p_value',
    'PublishedResult', 'default_k', 'published_test', 'ics', 'intrinsic', 'norm_gains', 'pcs',
    'reef', 'compare_networks', 'look_up', 'signature', 'states', 'HiddenStates', 'Signature',
    'kendall_matrix', 'kendall_tau', 'TestResult', 'CalibratedResult', 'calibrated_test',
    'norm_trace', 'compare',
)
