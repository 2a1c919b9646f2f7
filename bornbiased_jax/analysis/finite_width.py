"""What a finite width d adds to the theory of random networks (birth.py): leading terms in 1/d.

The mean product q_ij of the states at positions i and j of two sequences is a mean over d
channels. Every random matrix makes it fluctuate. One with d rows that adds the update u = W h to
the states x makes the fluctuation over inputs and weights

    Cov(δq_ij, δq_kl) = (S_ik U_jl + U_ik S_jl + U_ik U_jl) / d,

where S and U are the kernels of x and u within a sequence; one with m rows inside a sublayer adds
U_ik U_jl / m, if hidden units are taken for Gaussian. The layers above carry a fluctuation to the
last one by the derivatives of the kernel recursion. For feed-forward networks such corrections are
known (Yaida 2019, Hanin and Nica 2019). Three results follow, none of them fitted:

- Fluctuations over pairs of inputs, with S - X in the place of S, say how many dimensions the
  states fill: 1 / D is the variance of their products.
- Those that all inputs have in common, with X in the place of S, make the cosine differ between
  networks.
- Their squares change the mean. In gated networks (LLaMA), which do not contract in the limit,
  this is all: the two factors of a hidden unit correlate over inputs by chance.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis import birth
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count

# They leave an error of 3 % in the mean of a tiny LLaMA. Longer sequences can afford fewer.
NUM_SAMPLES = 256
_LONG = 256
# Above it, fluctuations are no small correction.
_LARGEST_SHIFT = 0.2


class FiniteWidth(NamedTuple):
  """What the width d of a network changes, after each of L layers.

  Attributes:
    inter_cosine_L: mean over networks of the cosine between the last positions of two
      sequences, with what fluctuations of q change in it.
    inter_cosine_std: its std over networks, after the last layer.
    dimensions: the dimensions that states after the last layer fill, the participation ratio
      (Σ λ)² / Σ λ² of the eigenvalues λ of their covariance over sequences.
  """

  inter_cosine_L: jax.Array
  inter_cosine_std: jax.Array
  dimensions: jax.Array


def finite_width(config: ModelConfig, length: int, probe: str = 'tokens',
                 num_samples: int | None = None) -> FiniteWidth:
  """Mean and spread of a random network's similarity, and the dimensions that its states fill.

  Args:
    config: the architecture.
    length: number of tokens per sequence, T.
    probe: as in `at_birth`.
    num_samples: samples of the fluctuations, over which the change of the mean is averaged;
      0 leaves the mean as it is in the limit. None means 256 up to 256 tokens, and fewer
      beyond, because each takes longer: 32 for 512 tokens, 4 for 1,024 (which leave a quarter of
      the change uncertain), none from 1,300 on.

  Raises:
    InputError: as `at_birth`, attention and MLP stand side by side (`parallel_residual`), or the
      network is too narrow: its fluctuations are not small.

  Cost: O(L T³), and O(num_samples L T³) for the mean; a repeated call costs nothing.

  Example:
    >>> from bornbiased_jax import configs
    >>> tiny = finite_width(configs.get('tiny_gpt2'), length=16)
    >>> round(float(tiny.inter_cosine_std), 2)
    0.03
  """
  return _finite_width(config, length, probe, num_samples)


@functools.lru_cache(maxsize=64, typed=True)
def _finite_width(config, length, probe, num_samples):
  if config.parallel_residual:
    raise InputError('the theory of finite width does not know parallel_residual=True; at_birth '
                     'does, for infinite width')
  limit_L = birth.at_birth(config, length, probe).inter_cosine_L
  dimensions, std = _spreads(config, length, probe)
  if num_samples is None:
    affordable = int(NUM_SAMPLES * min(1, _LONG / length) ** 3)
    num_samples = affordable if affordable > 1 else 0
  elif num_samples:
    check_count('num_samples', num_samples)
  shift_L = _shift(config, length, probe, num_samples, limit_L) if num_samples else jnp.zeros(1)
  if not (jnp.abs(shift_L).max() < _LARGEST_SHIFT and dimensions > 1):
    raise InputError(f'a network of width={config.width} and vocab_size={config.vocab_size} is too '
                     'small for the theory of finite width')
  return FiniteWidth(limit_L + shift_L, std, dimensions)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _spreads(config, length, probe):
  """Dimensions of the states, and the std over networks of the cosine."""
  start, before, added = _path(config, length, probe)
  silence = jnp.zeros_like(start[0]), jnp.zeros_like(before[0])
  last = lambda *noise, within: _cosines(config, start, *noise, within)[-1]
  derivatives = lambda within: jax.value_and_grad(
      functools.partial(last, within=within), argnums=(0, 1))(*silence)
  # First fluctuations of the products between sequences alone, then of those within as well.
  (cosine, _), (at_start_2TT, at_2LSTT) = lax.map(derivatives, jnp.array([0.0, 1.0]))
  own = lambda kernels: kernels[0] - kernels[1]
  # Those of a pair of inputs, and those that all inputs have in common.
  apart = (_carried(at_start_2TT[0], own(start), own(start)) / config.width
           + _variance(config, at_2LSTT[0], own(before), own(added)))
  common = _variance(config, at_2LSTT[1], before[1], added[1], symmetric=True)
  if config.positions == 'learned':  # All inputs have the embeddings of positions in common.
    position_TT = config.embedding_std**2 * jnp.eye(length)
    common += _carried(at_start_2TT[1], position_TT, position_TT, symmetric=True) / config.width
  return (1 - cosine) ** 2 / apart, jnp.sqrt(common)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _path(config, length, probe):
  """Kernels of the inputs, those before each sublayer, and what it adds, [L, sublayers, T, T]."""

  def block(kernels, _):
    seen = []
    for sublayer in birth.sublayers(config):
      after = sublayer(kernels)
      seen.append((kernels, jax.tree.map(jnp.subtract, after, kernels)))
      kernels = after
    return kernels, jax.tree.map(lambda *each: jnp.stack(each), *seen)

  start = birth.inputs(config, length, probe)
  before, added = lax.scan(block, start, length=config.num_layers)[1]
  return start, before, added


def _cosines(config, start, start_noise_TT, noise_LSTT, within=0.0):
  """Cosine of last positions after each layer, if fluctuations join the products.

  Those between sequences get all of them, those within a sequence the factor `within`.
  """

  # Derivatives need what the blocks compute: of one block at a time, not of all.
  @functools.partial(jax.checkpoint, prevent_cse=False)
  def block(kernels, noise_STT):
    for sublayer, noise_TT in zip(birth.sublayers(config), noise_STT, strict=True):
      within_TT, between_TT = sublayer(kernels)
      kernels = within_TT + within * noise_TT, between_TT + noise_TT
    return kernels, kernels[1][-1, -1] / kernels[0][-1, -1]

  noisy = start[0] + within * start_noise_TT, start[1] + start_noise_TT
  return lax.scan(block, noisy, noise_LSTT)[1]


def _inner_widths(config):
  """Rows of the random matrix inside each sublayer: value channels, and hidden units."""
  widths = {'full': (config.num_kv_heads * config.head_size, config.mlp_width),
            'attention_only': (config.num_kv_heads * config.head_size,),
            'mlp_only': (config.mlp_width,)}
  return jnp.array(widths[config.sublayers], jnp.float32)[None, :, None, None]


def _variance(config, at_LSTT, kernel_LSTT, added_LSTT, symmetric=False):
  """Variance that the sublayers' fluctuations cause, for the derivatives `at_LSTT`."""
  inner_LSTT = added_LSTT * (1 / config.width + 1 / _inner_widths(config))
  return sum(_carried(at_LSTT, a, b, symmetric) for a, b in (
      (kernel_LSTT / config.width, added_LSTT), (added_LSTT / config.width, kernel_LSTT),
      (inner_LSTT, added_LSTT)))


def _carried(at, a, b, symmetric=False):
  """Σ over i, j, k, l of at_ij at_kl a_ik b_jl, and over all leading axes.

  With `symmetric` at_lk is added to at_kl: both pairings of four equal states count.
  """
  turned = jnp.swapaxes(at, -1, -2)
  return jnp.sum((turned @ a) * (b @ (turned + at if symmetric else turned)))


def _shift(config, length, probe, num_samples, limit_L):
  """Change of the mean cosine after each layer, from samples of the fluctuations."""
  start, before, added = _path(config, length, probe)
  within = [np.asarray(kernels[0], np.float64) for kernels in (start, before, added)]
  # What a sublayer adds is as uncertain as the stream to which it is added.
  roots = [jnp.asarray(_root(kernel, uncertain), jnp.float32)
           for kernel, uncertain in zip(within, (within[0], within[1], within[1]), strict=True)]
  return _sampled(config, num_samples, start, *roots) - limit_L


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sampled(config, num_samples, start, start_root_TT, kernel_LSTT, added_LSTT):
  """The mean over samples; the last three arguments are roots of kernels (`_root`)."""
  d, inner = config.width, jnp.sqrt(1 / config.width + 1 / _inner_widths(config))
  L, S, T, _ = kernel_LSTT.shape

  def sample(key):
    # All are drawn at once, because every call takes a second to compile.
    normal_NTT = jax.random.normal(key, (3 * L * S + 1, T, T))
    into, through, out_of = normal_NTT[1:].reshape(3, L, S, T, T)
    across = kernel_LSTT @ into / d**0.5 + inner * added_LSTT @ through
    noise_LSTT = across @ added_LSTT.mT + added_LSTT @ out_of @ kernel_LSTT.mT / d**0.5
    start_noise_TT = start_root_TT @ normal_NTT[0] @ start_root_TT.T / d**0.5
    # With either sign, so that what is linear in the fluctuations cancels.
    with_sign = lambda sign: _cosines(config, start, sign * start_noise_TT, sign * noise_LSTT)
    return jax.vmap(with_sign)(jnp.array([1.0, -1.0])).mean(axis=0)

  keys = jax.random.split(jax.random.key(0), num_samples)
  # As many at a time as leave memory alone.
  return lax.map(sample, keys, batch_size=16 if len(start_root_TT) <= _LONG else 1).mean(axis=0)


def _root(kernel_TT, uncertain_TT):
  """R with R Rᵀ = K, which rounding may have made indefinite, in units of another kernel."""
  identity = np.eye(kernel_TT.shape[-1])
  unit = np.trace(uncertain_TT, axis1=-2, axis2=-1)[..., None, None] / len(identity)
  for share in (1e-7, 1e-6, 1e-5, 1e-4):
    try:
      return np.linalg.cholesky(kernel_TT + share * unit * identity)
    except np.linalg.LinAlgError:
      continue
  raise FloatingPointError('kernels of the theory of finite width are not positive')
