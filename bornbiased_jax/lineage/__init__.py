"""Does one network descend from another?

SeedPrint lets two networks read the same random inputs, a probe, and asks whether
their answers agree dimension by dimension. The answers are their fingerprints.

- `.fingerprints`: a network's answers to a probe, saved and loaded
- `.reading`: networks read probes, and give these answers
- `.features`: what hidden features read and write
- `.orders`: whether two networks have them in the same order, which tells descent
- `.likeness`: how alike these features are
- `.patterns`: signs that an order agrees by a pattern, and not by descent
- `.inventory`: the tensors that two networks share
- `.archives`: reads saved files without trusting them
- `.dossiers`: all that a verdict reads of one network
- `.permutations`: the test on which all verdicts rest
- `.seedprint`: the calibrated test of answers, channel by channel
- `.alignment`: the same after undoing a change of basis
- `.witnesses`: all tests of a pair, and what each of them misses
- `.doubts`: what else could make witnesses agree
- `.verdict`: what may be said about two networks, as sentences and as JSON
- `.names`: what the names of networks mean
- `.streaming`: fingerprints and dossiers of networks that do not fit into memory
- `.networks`: fingerprints, dossiers and verdicts of networks by name
- `.kendall`: Kendall's tau-b of columns, one by one or all with all
- `.ranks`: ranks of columns
- `.kendall_host`: its counts of pairs of columns on a CPU
- `.kendall_signs`: its counts over all columns with all
- `.published`: SeedPrint as published, for comparison
- `.alterations`: what hides where a network comes from without changing its function
- `.damage`: what changes its function
- `.baselines`: the fingerprints of others: Intrinsic, REEF, PCS and ICS
- `.methods`: all fingerprints behind one interface
"""

from bornbiased_jax.lineage.alignment import (
  aligned_test,
  basis_change,
  basis_fit,
  matched_units_test,
)
from bornbiased_jax.lineage.baselines import ics, intrinsic, pcs, reef
from bornbiased_jax.lineage.dossiers import Dossier
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.kendall import kendall_matrix, kendall_tau
from bornbiased_jax.lineage.methods import METHODS, Method, Score, Subject, judge, rank_p_value
from bornbiased_jax.lineage.names import load
from bornbiased_jax.lineage.networks import compare_networks, dossier, fingerprint
from bornbiased_jax.lineage.orders import unit_order, value_order
from bornbiased_jax.lineage.permutations import CalibratedResult
from bornbiased_jax.lineage.published import PublishedResult, default_k, published_test
from bornbiased_jax.lineage.seedprint import calibrated_test, norm_trace
from bornbiased_jax.lineage.verdict import compare

__all__ = (
    'aligned_test', 'basis_change', 'basis_fit', 'matched_units_test', 'ics', 'intrinsic', 'pcs',
    'reef', 'Dossier', 'unit_order', 'value_order', 'Fingerprint', 'kendall_matrix',
    'kendall_tau', 'METHODS', 'Method', 'Score', 'Subject', 'judge', 'rank_p_value',
    'compare_networks', 'dossier', 'fingerprint', 'load', 'CalibratedResult', 'PublishedResult',
    'default_k', 'published_test', 'calibrated_test', 'norm_trace', 'compare',
)
