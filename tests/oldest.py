"""What the oldest versions of JAX that setup.cfg allows cannot do, for the tests that show it."""

import jax

JAX_IS_OLD = jax.__version_info__ < (0, 8)
