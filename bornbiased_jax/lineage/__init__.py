"""Does one network descend from another?

  networks         networks by name, and their fingerprints
  fingerprints     what a network answers to a probe
  kendall          Kendall's tau-b, of columns and of all pairs
  published        SeedPrint as published
  seedprint        the calibrated test, the one to trust
  alignment        the same behind a change of basis
  verdict          what may be said of two networks, in words
  alterations      what can be done to a network to hide where it comes from
  baselines        the other fingerprints: Intrinsic, REEF, PCS, ICS
  methods          all of them behind one interface
"""

from bornbiased_jax.lineage.alignment import aligned_test
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.kendall import kendall_matrix, kendall_tau
from bornbiased_jax.lineage.methods import METHODS
from bornbiased_jax.lineage.networks import fingerprint, load
from bornbiased_jax.lineage.published import published_test
from bornbiased_jax.lineage.seedprint import calibrated_test
from bornbiased_jax.lineage.verdict import compare, compare_aligned
