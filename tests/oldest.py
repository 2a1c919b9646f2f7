"""What the oldest versions that setup.cfg allows cannot do, for the tests that show it."""

import inspect

import jax
from optax import contrib
import pytest

JAX_IS_OLD = jax.__version_info__ < (0, 8)
needs_newer_muon = pytest.mark.skipif(
    'consistent_rms' not in inspect.signature(contrib.muon).parameters,
    reason='needs optax 0.2.7')
