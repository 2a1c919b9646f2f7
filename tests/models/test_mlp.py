"""Mixtures of experts: which are chosen, how they are weighed, and what balances them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import layers, sharding
from bornbiased_jax.models.initialization import param_shapes
from small_networks import LLAMA, SMALL, random_networks, read, tokens

EXPERTS = configs.get('tiny_moe', **SMALL, num_experts=5, experts_per_token=2, shared_mlp_width=24)


@pytest.mark.parametrize('renormalized', [True, False])
def test_the_largest_logits_are_chosen(renormalized):
  logits_NE = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
  weight_NE = np.asarray(layers.route(jnp.asarray(logits_NE), 2, renormalized))
  chosen_NE = np.argsort(np.argsort(logits_NE)) >= 3
  shown_NE = np.where(chosen_NE, logits_NE, -np.inf) if renormalized else logits_NE
  expected_NE = np.where(chosen_NE, scipy.special.softmax(shown_NE, axis=1), 0)
  np.testing.assert_allclose(weight_NE, expected_NE, atol=1e-6)


def test_what_is_read_is_what_is_computed():
  (params,), ids = random_networks(EXPERTS, 1), tokens(1, 3)
  names = 'router_logits', 'expert_weights', 'logits'
  found = read(EXPERTS, params, ids, *names)
  assert found['router_logits'].shape == found['expert_weights'].shape == (3, 1, 3, 5)
  np.testing.assert_array_equal(layers.route(found['router_logits'], 2, True),
                                found['expert_weights'])
  # An expert that is never chosen does not matter, and one that is chosen does.
  used_LE = np.asarray(found['expert_weights']).sum(axis=(1, 2)) > 0
  for is_used in (True, False):
    changed = jax.tree.map(np.array, params)
    kernel_LEDF = changed['blocks']['experts']['up']['kernel']
    kernel_LEDF[used_LE == is_used] *= 2
    same = np.array_equal(read(EXPERTS, changed, ids, *names)['logits'], found['logits'])
    assert same is not is_used, is_used
  assert not used_LE.all()


@pytest.mark.parametrize('config, name', [(EXPERTS, 'mlp_hidden'), (LLAMA, 'router_logits')])
def test_what_a_network_lacks_is_named(config, name):
  with pytest.raises(InputError, match=f"{name}' of a model .*num_experts={config.num_experts}"):
    read(config, random_networks(config, 1)[0], tokens(1, 4), name)


def test_balance_is_that_of_transformers():
  mixtral = pytest.importorskip('transformers.models.mixtral.modeling_mixtral')
  torch = pytest.importorskip('torch')
  logits_LBTE = np.random.default_rng(1).normal(size=(3, 4, 10, 5)).astype(np.float32)
  # Theirs is a sum over the chosen, and mixes layers if there are several.
  theirs = [float(mixtral.load_balancing_loss_func((torch.tensor(each).reshape(-1, 5),), 5, 2)) / 2
            for each in logits_LBTE]
  assert float(layers.balance_loss(EXPERTS, jnp.asarray(logits_LBTE))) == pytest.approx(
      np.mean(theirs), rel=1e-5)
  alike = dataclasses.replace(EXPERTS, experts_per_token=5)
  assert float(layers.balance_loss(alike, jnp.zeros((1, 2, 3, 5)))) == pytest.approx(1)


def test_a_mesh_shares_out_whole_experts():
  config = dataclasses.replace(EXPERTS, num_experts=4)
  tree = param_shapes(config)
  placed = sharding.shardings(sharding.make_mesh(1, 2, 2), tree)['blocks']
  assert tuple(placed['experts']['up']['kernel'].spec) == (None, 'tensor', 'fsdp', None)
  assert tuple(placed['experts']['down']['kernel'].spec) == (None, 'tensor', None, 'fsdp')
  assert tuple(placed['shared']['up']['kernel'].spec) == (None, 'fsdp', 'tensor')
