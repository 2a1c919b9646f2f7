"""What theory says of random networks, from only their configuration; nothing in it is fitted.

`finite_width(config, length).inter_cosine_L` is the cosine of two sequences by layer, to compare
with measured ones; `infinite_width` is its limit. `preference_at_initialization` predicts how often
a network predicts its preferred token, and `expert_shares` how its routers load the experts. There
are also closed forms of single layers, and what the fingerprints PCS and CKA show for unrelated
networks. The modules are best read in this order:

- `.closed_forms`: Propositions 2, 4 and 5, Equation 2, and the covariance of an activation
- `.blocks`: what theory reads of a configuration, and how attention and MLPs change similarities
- `.infinite_width`: similarities in a whole random network of infinite width
- `.fluctuations`: how much networks of finite width differ, and the dimensions of their states
- `.finite_width`: what fluctuations change in the mean
- `.random_energy`: how often a network predicts its preferred token
- `.experts`: the same of a router and its experts
"""

from bornbiased_jax.analysis.theory.closed_forms import (
    activation_similarity,
    amplified_similarity,
    independent_pcs,
    iterate,
    position_similarity,
    positional_std,
    relu_similarity,
    rotary_coherence,
)
from bornbiased_jax.analysis.theory.experts import ExpertShares, expert_shares, load_of_others
from bornbiased_jax.analysis.theory.finite_width import FiniteWidth, finite_width
from bornbiased_jax.analysis.theory.infinite_width import InfiniteWidth, infinite_width
from bornbiased_jax.analysis.theory.random_energy import (
    Preference,
    preference,
    preference_at_initialization,
)

__all__ = (
    'InfiniteWidth', 'infinite_width', 'activation_similarity', 'amplified_similarity',
    'independent_pcs', 'iterate', 'position_similarity', 'positional_std',
    'relu_similarity', 'rotary_coherence', 'ExpertShares', 'expert_shares', 'load_of_others',
    'FiniteWidth', 'finite_width', 'Preference', 'preference', 'preference_at_initialization',
)
