"""What a finite width d adds to the theory of random networks: the leading terms in 1/d.

fluctuations.py describes the fluctuations. Their squares change the mean of a cosine. In gated
networks (LLaMA), which do not contract in the limit, this is all: the two factors of a hidden unit
correlate over inputs by chance.

Random sequences share little, so that products within a sequence are left as they are when those
between two fluctuate. Windows of a text share much, and what they share fluctuates alike in both:
so the products of all 2 T states of a pair fluctuate as one kernel, which contains the one between
the sequences.
"""

import contextlib
import functools
import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import OF_TEXT, Probe, kind_of
from bornbiased_jax.analysis.theory import blocks, fluctuations
from bornbiased_jax.analysis.theory.infinite_width import first_kernels, pairs_of_windows
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count, check_kind
from bornbiased_jax.models.initialization import make_key

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
    direction_std: τ, the std over sequences of a state of length 1 along their common direction.
  """

  inter_cosine_L: jax.Array
  inter_cosine_std: jax.Array
  dimensions: jax.Array
  direction_std: jax.Array


def finite_width(config: ModelConfig, length: int, probe: str | Probe = 'tokens',
                 num_samples: int | None = None) -> FiniteWidth:
  """Mean and spread of a random network's similarity, and the dimensions that its states fill.

  Args:
    config: the architecture.
    length: number of tokens per sequence, T.
    probe: as `infinite_width` takes it.
    num_samples: samples of the fluctuations, over which the change of the mean is averaged;
      0 leaves the mean as it is in the limit. None means 256 up to 256 tokens, and fewer
      beyond, because each takes longer: 32 for 512 tokens, 4 for 1,024 (which leave a quarter of
      the change uncertain), none from 1,300 on. For a text they are as many as for random
      sequences of 2 T tokens, each of another pair of windows.

  Raises:
    InputError: as `infinite_width`, attention and MLP stand side by side (`parallel_residual`), or
      network is too narrow: its fluctuations are not small.

  Cost: O(L T³), and O(num_samples L T³) for the mean, for texts with a factor of 8; a repeated call
  costs nothing.

  Example:
    >>> from bornbiased_jax import configs
    >>> tiny = finite_width(configs.get('tiny_gpt2', num_layers=2), length=16)
    >>> round(float(tiny.inter_cosine_std), 2)
    0.02
  """
  check_kind(config, ModelConfig, 'a ModelConfig')  # Dicts of arrays have no hash.
  return _finite_width(config, length, probe, num_samples)


@functools.lru_cache(maxsize=64, typed=True)
def _finite_width(config, length, probe, num_samples):
  if config.parallel_residual:
    raise InputError('the theory of finite width does not know parallel_residual=True; '
                     'infinite_width does')
  network, start_PKTT = first_kernels(config, length, probe)
  widths = fluctuations.widths_of(config)
  path, end_KTT = fluctuations.path_of(network, start_PKTT.mean(axis=0))
  std, dimensions, direction_std = fluctuations.spreads(network, widths, path, end_KTT)
  extent = 2 * length if kind_of(probe) in OF_TEXT else length
  if num_samples is None:
    affordable = int(NUM_SAMPLES * min(1, _LONG / extent) ** 3)
    num_samples = affordable if affordable > 1 else 0
  elif num_samples:
    check_count('num_samples', num_samples)
  limit_PL, change_L = _means(network, widths, start_PKTT, extent, num_samples)
  limit_L = limit_PL.mean(axis=0)
  if kind_of(probe) in OF_TEXT:
    windows = _variance_of_windows(config, probe, limit_PL[:, -1]) / max(limit_L[-1], 1e-9)
    direction_std = jnp.sqrt(direction_std**2 + windows)
  if not (np.abs(change_L).max() < _LARGEST_SHIFT and float(dimensions) > 1):
    raise InputError(f'a network of width={config.width} and vocab_size={config.vocab_size} is too '
                     'small for the theory of finite width')
  return FiniteWidth(jnp.asarray(limit_L + change_L), std, dimensions, direction_std)


def _variance_of_windows(config, probe, cosine_P):
  """How much windows differ in their mean cosine with others; roughly, as each has few pairs."""
  _, *pairs_2P = pairs_of_windows(config, probe)
  first_and_second, gap = np.ravel(pairs_2P), np.tile(cosine_P - cosine_P.mean(), 2)
  sum_N, square_N = (np.bincount(first_and_second, each) for each in (gap, gap**2))
  times = len(gap) / len(sum_N)
  return max(0.0, float(np.mean(sum_N**2 - square_N)) / (times * (times - 1)))


def _means(network, widths, start_PKTT, extent, num_samples):
  """The cosines of each pair in the limit, and what fluctuations change in them on average."""
  # Where products within a sequence fluctuate, they stay positive in a network of four times the
  # width, in which a quarter of this changes.
  wider = 1 if extent == start_PKTT.shape[-1] else 4
  limits, changes = [], [] if num_samples else [np.zeros(network.num_layers, np.float32)]
  for number, start_KTT in enumerate(start_PKTT):
    path, _ = fluctuations.path_of(network, start_KTT)
    limits.append(np.asarray(path.cosine_L))  # In numpy, which compiles nothing.
    if number < num_samples:
      key = jax.random.fold_in(make_key(0), number) if number else make_key(0)
      sampled_L = _sample(network, jax.tree.map(lambda width: wider * width, widths),
                          max(1, num_samples // len(start_PKTT)), key, start_KTT,
                          *_roots(path, extent))
      changes.append(wider * (np.asarray(sampled_L) - limits[-1]))
  return np.stack(limits), np.mean(changes, axis=0)


def _roots(path, extent):
  """Those of the kernels of T or, of both sequences, 2 T states, in the order of the path."""
  start, before, added = (_joined(np.asarray(kernels, np.float64), extent) for kernels in path[:3])
  # What a sublayer adds is as uncertain as the stream to which it is added.
  return [_root(kernel, uncertain).astype(np.float32)
          for kernel, uncertain in ((start, start), (before, before), (added, before))]


def _joined(kernels_KTT, extent):
  first_TT, second_TT, between_TT = np.moveaxis(kernels_KTT, -3, 0)
  if extent == first_TT.shape[-1]:
    return first_TT
  return np.block([[first_TT, between_TT], [between_TT.swapaxes(-1, -2), second_TT]])


@functools.partial(jax.jit, static_argnums=2)
def _sample(network, widths, num_samples, key, start_KTT, start_root_MM, before_LSMM, added_LSMM):
  """Mean cosine after each layer, over samples; the last arguments are roots of kernels."""
  d, inner = widths.stream, jnp.sqrt(1 / widths.stream + 1 / widths.inner_S11)[None]
  L, S, M, _ = before_LSMM.shape
  T = start_KTT.shape[-1]

  def noise(key):
    # All are drawn at once, because every call takes a second to compile.
    normal_NMM = jax.random.normal(key, (3 * L * S + 1, M, M))
    into, through, out_of = normal_NMM[1:].reshape(3, L, S, M, M)
    across = before_LSMM @ into / d**0.5 + inner * added_LSMM @ through
    noise_LSMM = across @ added_LSMM.mT + added_LSMM @ out_of @ before_LSMM.mT / d**0.5
    return start_root_MM @ normal_NMM[0] @ start_root_MM.T / d**0.5, noise_LSMM

  def batch(keys_N):
    noises = jax.vmap(noise, out_axes=(-3, -3))(keys_N)
    # With either sign, so that what is linear in the fluctuations cancels.
    if M == T:  # None within sequences.
      signed = [jnp.concatenate([jnp.zeros((*each.shape[:-3], 2, T, T)), each, -each], axis=-3)
                for each in noises]
      return _cosines(network, start_KTT, *signed).mean(axis=1)
    each_way = [jnp.concatenate([each, -each], axis=-4) for each in map(_of_both, noises)]
    of_sample = functools.partial(_cosines, network, start_KTT)
    return jax.vmap(of_sample, in_axes=-4, out_axes=1)(*each_way).mean(axis=(1, 2))

  # As many at a time as do not fill the memory.
  keys = jax.random.split(key, num_samples)
  size = math.gcd(num_samples, 16) if M <= _LONG else 1
  return lax.map(batch, keys.reshape(-1, size)).mean(axis=0)


def _of_both(noise_MM):
  """Fluctuations within both sequences and between them, which are of one symmetric kernel."""
  both_MM = (noise_MM + noise_MM.mT) / 2**0.5
  T = both_MM.shape[-1] // 2
  return jnp.stack([both_MM[..., :T, :T], both_MM[..., T:, T:], both_MM[..., :T, T:]], axis=-3)


def _cosines(network, start_KTT, start_noise_KTT, noise_LSKTT):
  """Cosines of last positions after each layer, [L, K - 2], if fluctuations join the products."""

  def block(kernels_KTT, noise_SKTT):
    for sublayer, noise_KTT in zip(blocks.sublayers(network), noise_SKTT, strict=True):
      kernels_KTT = sublayer(kernels_KTT) + noise_KTT
    return kernels_KTT, fluctuations.cosine_of(kernels_KTT)

  within_KTT, between_KTT = start_KTT[:2], start_KTT[2:]
  between_KTT = jnp.repeat(between_KTT, len(start_noise_KTT) - 2, axis=0)
  noisy_KTT = jnp.concatenate([within_KTT, between_KTT]) + start_noise_KTT
  return lax.scan(block, noisy_KTT, noise_LSKTT)[1]


def _root(kernel_TT, uncertain_TT):
  """R with R Rᵀ = K, which rounding may have made indefinite, in units of another kernel."""
  identity = np.eye(kernel_TT.shape[-1])
  unit = np.trace(uncertain_TT, axis1=-2, axis2=-1)[..., None, None] / len(identity)
  for share in (1e-7, 1e-6, 1e-5):
    with contextlib.suppress(np.linalg.LinAlgError):
      return np.linalg.cholesky(kernel_TT + share * unit * identity)
  return np.linalg.cholesky(kernel_TT + 1e-4 * unit * identity)
