"""The MLP of a block, and mixtures of experts, of which a router chooses some for each position."""

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.configs import ACTIVATIONS, ModelConfig
from bornbiased_jax.models.linear import dense


def mlp(config: ModelConfig, x_BTD: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
  """What an MLP adds to the residual stream [B, T, D], and its hidden units [B, T, F].

  Its layers belong to the module in whose compact method it is called.
  """
  hidden_BTF = dense(config, 'up', width, config.mlp_bias)(x_BTD)
  if config.gated_mlp:
    gate_BTF = dense(config, 'gate', width, config.mlp_bias)(x_BTD)
    hidden_BTF = ACTIVATIONS[config.activation](gate_BTF) * hidden_BTF
  else:
    hidden_BTF = ACTIVATIONS[config.activation](hidden_BTF)
  return dense(config, 'down', config.width, config.mlp_bias)(hidden_BTF), hidden_BTF


class Mlp(nn.Module):
  """An MLP with a name of its own: the experts, which are stacked, or the one that all share."""

  config: ModelConfig
  width: int

  @nn.compact
  def __call__(self, x_BTD):
    return mlp(self.config, x_BTD, self.width)[0]


def mixture(config: ModelConfig, x_BTD: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
  """What experts add to the residual stream [B, T, D], and what the router said (READS).

  Every expert is computed at every position and weighed, most of them with 0. So the sum over
  experts is one product, which a mesh divides by expert, and costs num_experts /
  experts_per_token times what the chosen ones need.
  """
  logits_BTE = dense(config, 'router', config.num_experts, use_bias=False)(x_BTD)
  logits_BTE = logits_BTE.astype(jnp.float32)
  weight_BTE = route(logits_BTE, config.experts_per_token, config.renormalized_experts)
  experts = nn.vmap(Mlp, variable_axes={'params': 0}, split_rngs={'params': True}, in_axes=None,
                    axis_size=config.num_experts)
  update_EBTD = experts(config, config.mlp_width, name='experts')(x_BTD)
  update_BTD = jnp.einsum('EBTD,BTE->BTD', update_EBTD, weight_BTE.astype(x_BTD.dtype))
  if config.shared_mlp_width:
    opened_BT1 = nn.sigmoid(dense(config, 'shared_gate', 1, use_bias=False)(x_BTD))
    update_BTD += opened_BT1 * Mlp(config, config.shared_mlp_width, name='shared')(x_BTD)
  return update_BTD, {'router_logits': logits_BTE, 'expert_weights': weight_BTE}


def route(logits_BTE: jax.Array, num_chosen: int, renormalized: bool) -> jax.Array:
  """The weight of each expert, 0 for those that are not chosen, [..., E] as the logits.

  The experts with the largest logits are chosen. Their weights are the softmax over all experts,
  or, if they are to be renormalized, over the chosen.
  """
  weight_BTE = nn.softmax(logits_BTE) * chosen(logits_BTE, num_chosen)
  if renormalized:
    weight_BTE /= weight_BTE.sum(axis=-1, keepdims=True)
  return weight_BTE


def chosen(logits_BTE: jax.Array, num_chosen: int) -> jax.Array:
  """1 for the experts with the largest logits, so many for each position, and 0 for the others."""
  index_BTK = lax.top_k(logits_BTE, num_chosen)[1]
  return nn.one_hot(index_BTK, logits_BTE.shape[-1]).sum(axis=-2)


def balance_loss(config: ModelConfig, logits_LBTE: jax.Array) -> jax.Array:
  """The balance loss of a batch (Fedus et al. 2022, eq. 4), mean over layers.

  E Σ_e f_e P_e, of the share f_e of choices that fall on expert e, and its mean probability P_e.
  It is 1 if all experts are chosen alike.
  """
  chosen_LBTE = chosen(logits_LBTE, config.experts_per_token)
  share_LE = chosen_LBTE.mean(axis=(1, 2)) / config.experts_per_token
  mean_LE = nn.softmax(logits_LBTE).mean(axis=(1, 2))
  return config.num_experts * (share_LE * mean_LE).sum(axis=-1).mean()
