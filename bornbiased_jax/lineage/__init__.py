"""Does one network descend from another?

SeedPrint lets two networks read the same random inputs, a probe, and asks whether
their answers agree dimension by dimension. The answers are their fingerprints.

  fingerprints     a network's answers to a probe: computed, saved and loaded
  networks         networks by name, and their fingerprints
  kendall          Kendall's tau-b of columns, one by one or all with all
  kendall_signs    its counts over all columns with all
  published        SeedPrint as published, for comparison
  seedprint        the calibrated test, which is the one to trust
  alignment        the calibrated test after undoing a change of basis
  verdict          what may be said about two networks, as sentences and as JSON
  alterations      what can be done to a network to hide where it comes from
  baselines        the fingerprints of others: Intrinsic, REEF, PCS and ICS
  methods          all fingerprints behind one interface
"""

from bornbiased_jax.lineage.alignment import (
  aligned_test,
  basis_change,
  basis_fit,
  matched_units_test,
)
from bornbiased_jax.lineage.baselines import ics, intrinsic, pcs, reef
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.kendall import kendall_matrix, kendall_tau
from bornbiased_jax.lineage.methods import METHODS, Method, Score, Subject, rank_p_value
from bornbiased_jax.lineage.networks import fingerprint, load
from bornbiased_jax.lineage.published import PublishedResult, default_k, published_test
from bornbiased_jax.lineage.seedprint import CalibratedResult, calibrated_test, norm_trace
from bornbiased_jax.lineage.verdict import compare, compare_aligned
