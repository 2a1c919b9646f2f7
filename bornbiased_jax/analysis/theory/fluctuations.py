"""How the similarity of two sequences fluctuates in networks of finite width, to leading order.

The mean product q_ij of the states at positions i and j of two sequences is a mean over d
channels. Every random matrix makes it fluctuate. One with d rows that adds the update u = W h to
the states x makes the fluctuation over inputs and weights

    Cov(δq_ij, δq_kl) = (S_ik U_jl + U_ik S_jl + U_ik U_jl) / d,

where S and U are the kernels of x and u within a sequence; one with m rows inside a sublayer adds
U_ik U_jl / m, if hidden units are taken for Gaussian. The layers above carry a fluctuation to the
last one by the derivatives of the kernel recursion. For feed-forward networks such corrections are
known (Yaida 2019, Hanin and Nica 2019). Three results follow here, and one in finite_width.py:

- Fluctuations over pairs of inputs, with S - X in the place of S, say how many dimensions the
  states fill: 1 / D is the variance of their products. X is the kernel between the sequences.
- Those that all inputs have in common, with X in the place of S, make the cosine differ between
  networks.
- Those of one input with all others, S - X on its side and X on theirs, move its component along
  the direction that all share, c, because its mean product with others is c √ρ. So do those of its
  own length, S - X on both sides, as norms divide by it.

Of a mixture, the luck in which experts the inputs choose is left out of the std over networks.
Matrices have independent entries here. Orthogonal ones keep some products exactly, and
ALiBi's heads fluctuate one by one; both are ignored here.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.theory import blocks


class Widths(NamedTuple):
  """Rows of random matrices: of those that write to the stream, and of those inside sublayers."""

  stream: float
  inner_S11: np.ndarray


class Path(NamedTuple):
  """Kernels of the inputs, those before each sublayer, and what it adds; cosines after blocks."""

  start_KTT: jax.Array
  before_LSKTT: jax.Array
  added_LSKTT: jax.Array
  cosine_L: jax.Array


def widths_of(config):
  """Inside a sublayer, rows are value channels or hidden units."""
  widths = {'full': (config.num_kv_heads * config.head_size, config.mlp_width),
            'attention_only': (config.num_kv_heads * config.head_size,),
            'mlp_only': (config.mlp_width,)}
  inner_S = np.array(widths[config.sublayers], np.float32)
  return Widths(config.width, inner_S[:, None, None])


@jax.jit
def spreads(network, widths, path, end_KTT):
  """The cosine's std over networks, the dimensions of states, their std along the direction."""
  at_end_KTT = jax.grad(lambda kernels_KTT: cosine_of(kernels_KTT)[0])(end_KTT)
  at_start_KTT, at_LSKTT = derivatives(network, path.before_LSKTT, at_end_KTT,
                                        jnp.zeros_like(path.before_LSKTT))
  # Those that all inputs have in common join those within a sequence as well.
  shared = path.before_LSKTT[:, :, 2], path.added_LSKTT[:, :, 2]
  common = _variance(widths, at_LSKTT.sum(axis=2), shared, shared, symmetric=True)
  # Learned positions are such.
  position_TT = network.position_variance * jnp.eye(end_KTT.shape[-1])
  common += _carry(at_start_KTT.sum(axis=0), position_TT, position_TT,
                     symmetric=True) / widths.stream
  dimensions, std = of_states(widths, path, at_start_KTT, at_LSKTT, path.cosine_L[-1])
  return jnp.sqrt(common), dimensions, std


def of_states(widths, path, at_start_KTT, at_LSKTT, cosine):
  """Their dimensions and their std along the direction, by the derivatives of their cosine."""
  shared = [kernels[..., 2, :, :] for kernels in path[:3]]
  own = [kernels[..., 0, :, :] - each for kernels, each in zip(path[:3], shared, strict=True)]

  def variance(at_start_TT, at_LSTT, one, other, symmetric=False):
    return (_carry(at_start_TT, one[0], other[0], symmetric) / widths.stream
            + _variance(widths, at_LSTT, one[1:], other[1:], symmetric))

  within, between = ((at_start_KTT[k], at_LSKTT[:, :, k]) for k in (0, 2))
  apart = variance(*between, own, own)
  with_others = [at + each + jnp.swapaxes(each, -1, -2)
                 for at, each in zip(between, within, strict=True)]
  alone = variance(*with_others, own, shared) + variance(*within, own, own, symmetric=True)
  return (1 - cosine) ** 2 / apart, jnp.sqrt(alone / cosine)


@jax.jit
def path_of(network, start_KTT):
  """The path, and the kernels at its end."""

  def block(kernels_KTT, _):
    seen = [kernels_KTT]
    for sublayer in blocks.sublayers(network):
      seen.append(sublayer(seen[-1]))
    seen_SKTT = jnp.stack(seen)
    return seen[-1], (seen_SKTT[:-1], seen_SKTT[1:] - seen_SKTT[:-1], cosine_of(seen[-1])[0])

  end_KTT, steps = lax.scan(block, start_KTT, length=network.num_layers)
  return Path(start_KTT, *steps), end_KTT


def cosine_of(kernels_KTT, position=-1):
  """Cosines of the last or another position, one for each kernel between sequences."""
  first, second, *between = kernels_KTT[:, position, position]
  return jnp.stack(between) / jnp.sqrt(first * second)


def derivatives(network, before_LSKTT, at_end_KTT, direct_LSKTT):
  """Of a cosine, with respect to the kernels of the inputs and those after sublayers.

  Given are its derivatives by the last kernels, and direct ones by those before sublayers.
  """
  def block(at_KTT, step):
    after = []
    for sublayer, before_KTT, direct_KTT in zip(
        blocks.sublayers(network)[::-1], *(kernels[::-1] for kernels in step), strict=True):
      after.append(at_KTT)
      at_KTT = jax.vjp(sublayer, before_KTT)[1](at_KTT)[0] + direct_KTT
    return at_KTT, jnp.stack(after[::-1])

  return lax.scan(block, at_end_KTT, (before_LSKTT, direct_LSKTT), reverse=True)


def _variance(widths, at_LSTT, one, other, symmetric=False):
  """Variance that the sublayers' fluctuations cause, for the derivatives `at_LSTT`.

  `one` and `other` are kernels before sublayers and what is added to them, of either side.
  """
  (kernel_LSTT, added_LSTT), (other_kernel_LSTT, other_added_LSTT) = one, other
  inner_LSTT = added_LSTT * (1 / widths.stream + 1 / widths.inner_S11)[None]
  return sum(_carry(at_LSTT, a, b, symmetric) for a, b in (
      (kernel_LSTT / widths.stream, other_added_LSTT),
      (added_LSTT / widths.stream, other_kernel_LSTT), (inner_LSTT, other_added_LSTT)))


def _carry(at, a, b, symmetric=False):
  """Σ at_ij at_kl a_ik b_jl over all axes; `symmetric` adds at_lk, the pairing of equal states."""
  turned = jnp.swapaxes(at, -1, -2)
  return jnp.sum((turned @ a) * (b @ (turned + at if symmetric else turned)))
