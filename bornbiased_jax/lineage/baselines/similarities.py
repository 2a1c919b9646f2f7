"""Similarities of two models by which others call them related.

The paper compares with Intrinsic, REEF, PCS and ICS (Tables 5, 6, 8 and 12). Their authors call
models related if the similarity is above 0.8. The cosine of norm gains is another. But unrelated
models have similarities far from 0, which differ from method to method. So compare a score with
the scores of unrelated models (`methods.reference_scores`).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.comparison.any_basis import unbiased_hsic
from bornbiased_jax.models.initialization import EMBEDDING_LEAVES

PUBLISHED_THRESHOLD = 0.8
ICS_LAYERS = 2
ICS_TOKENS = 4096


def intrinsic(params_a: dict, params_b: dict) -> float:
  """Correlation over layers of the std of matrices; mean over query, key, value and output.

  The shallower model is brought to the depth of the deeper one by linear
  interpolation.

  Raises:
    InputError: a model has fewer than two layers, or no attention.

  Example:
    >>> from bornbiased_jax import lineage, storage
    >>> _, params = storage.open('tiny_gpt2:42').load()
    >>> round(lineage.intrinsic(params, params), 3)
    1.0
  """
  deviations = [_layer_stds(params) for params in (params_a, params_b)]
  depth = max(len(std_L4) for std_L4 in deviations)
  if min(len(std_L4) for std_L4 in deviations) < 2:
    raise InputError('a correlation over layers needs at least two of them in both models')
  a, b = (np.stack([np.interp(np.linspace(0, 1, depth), np.linspace(0, 1, len(std_L4)), std_L)
                    for std_L in std_L4.T]) for std_L4 in deviations)
  # If all matrices have the same std there is no correlation, and _finite says so.
  with np.errstate(invalid='ignore', divide='ignore'):
    return _finite(np.mean([np.corrcoef(*pair)[0, 1] for pair in zip(a, b, strict=True)]))


def _finite(score) -> float:
  if not np.isfinite(score):
    raise InputError('these models have no such similarity: what it compares is constant, or '
                     'not finite')
  return float(score)


def _layer_stds(params):
  kernels = [_kernel(params, name) for name in ('query', 'key', 'value', 'output')]
  return np.asarray(_stds(kernels), np.float64)


@jax.jit
def _stds(kernels):
  return jnp.stack([kernel_LDF.std(axis=(1, 2), ddof=1) for kernel_LDF in kernels], axis=-1)


def _kernel(params, name):
  if name not in params['blocks']:
    raise InputError(f'a model without {name} has no such fingerprint')
  return params['blocks'][name]['kernel']


def norm_gains(params_a: dict, params_b: dict) -> float:
  """Mean, over layers and the norms in them, of the cosine of gains.

  All gains of random models are 1, so that unrelated ones have a cosine of exactly 1. Training
  leaves most gains positive, and so cosines high. Layers that only one model has are left out.

  Raises:
    InputError: their norms differ in place or width.

  Example:
    >>> from bornbiased_jax import lineage, storage
    >>> (_, a), (_, b) = (storage.open(f'tiny_gpt2:{seed}').load() for seed in (42, 43))
    >>> lineage.norm_gains(a, b)
    1.0
  """
  a, b = (_gains(params) for params in (params_a, params_b))
  names = sorted(a.keys() & b.keys())
  if not names or any(a[name].shape[1:] != b[name].shape[1:] for name in names):
    raise InputError('models whose norms differ in place or width have no gains to compare')
  return _finite(np.mean([
      x_D @ y_D / np.sqrt((x_D @ x_D) * (y_D @ y_D))
      for name in names for x_D, y_D in zip(a[name], b[name], strict=False)]))


def _gains(params):
  return {jax.tree_util.keystr(path): np.asarray(leaf, np.float64)
          for path, leaf in jax.tree_util.tree_leaves_with_path(params['blocks'])
          if path[-1].key == 'scale'}


def pcs(params_a: dict, params_b: dict) -> float:
  """Cosine of all parameters as one vector, without embeddings and LM head.

  For independent models it is not 0, because the gains of norms are 1 in both
  (`theory.independent_pcs`).

  Raises:
    InputError: the parameters of the models have different names or shapes.

  Example:
    >>> from bornbiased_jax import lineage, storage
    >>> (_, a), (_, b) = (storage.open(f'tiny_gpt2:{seed}').load() for seed in (42, 43))
    >>> round(lineage.pcs(a, a), 3), lineage.pcs(a, b) > 0.1
    (1.0, True)
  """
  bodies = [{name: leaf for name, leaf in params.items() if name not in EMBEDDING_LEAVES}
            for params in (params_a, params_b)]
  if _shapes(bodies[0]) != _shapes(bodies[1]):
    raise InputError('parameters of different shapes have no cosine')
  return _finite(_cosine(*bodies))


def _shapes(params):
  return {jax.tree_util.keystr(path): leaf.shape
          for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


@jax.jit
def _cosine(tree_a, tree_b):
  dot = lambda x, y: sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), x, y)))
  return dot(tree_a, tree_b) / jnp.sqrt(dot(tree_a, tree_a) * dot(tree_b, tree_b))


def reef(hidden_a: jax.Array | np.ndarray, hidden_b: jax.Array | np.ndarray,
         unbiased: bool = False) -> float:
  """Linear CKA between the states of two models that read the same statements (REEF).

  The published estimator of HSIC is biased, so that the CKA of independent states is about
  d / (d + n). That of Song et al. (2012) is unbiased. Widths may differ.

  Raises:
    InputError: the numbers of statements differ or are below 4.

  Example:
    >>> from bornbiased_jax import lineage
    >>> states, other = np.random.default_rng(0).standard_normal((2, 50, 50))
    >>> round(lineage.reef(states, -states), 3), lineage.reef(states, other) > 0.4
    (1.0, True)
  """
  hidden_a, hidden_b = jnp.asarray(hidden_a, jnp.float32), jnp.asarray(hidden_b, jnp.float32)
  if len(hidden_a) != len(hidden_b) or len(hidden_a) < 4:
    raise InputError(f'states of {len(hidden_a)} and {len(hidden_b)} statements cannot be '
                     'compared; both must be of the same, at least 4')
  return _finite(_cka(hidden_a, hidden_b, unbiased))


@functools.partial(jax.jit, static_argnums=2)
def _cka(hidden_a, hidden_b, unbiased):
  hsic = unbiased_hsic if unbiased else _hsic_biased
  with jax.default_matmul_precision('highest'):
    a, b = _standardize(hidden_a), _standardize(hidden_b)
    return hsic(a, b) / jnp.sqrt(hsic(a, a) * hsic(b, b))


def _standardize(hidden_ND):
  """Features with mean 0 and std 1; constant ones become 0."""
  centred_ND = hidden_ND - hidden_ND.mean(axis=0, keepdims=True)
  std_1D = centred_ND.std(axis=0, keepdims=True)
  return centred_ND / jnp.where(std_1D > 0, std_1D, 1)


def _hsic_biased(a_ND, b_NE):
  return jnp.sum((a_ND.T @ b_NE) ** 2)


def ics(params_a: dict, params_b: dict, ids: np.ndarray | None = None, *,
        companion: bool = False, head_size: int | None = None) -> float:
  """Cosine of the invariants that HuRef reads from the last two layers.

  With X the embeddings of chosen tokens, these are X Wq Wk' X', X Wv Wo X' and
  X (Wgate * Wup) Wdown X', or X Wup Wdown X' without a gate. Permutations of the
  residual basis, of heads and of MLP units leave them as they are.

  Args:
    params_a: parameters of one model, as from `initialization.init_params`.
    params_b: parameters of the other model.
    ids: the chosen tokens. HuRef takes the rarest of a corpus. The default is the last
      ICS_TOKENS ids, which subword vocabularies rank last.
    companion: whether to compute as the paper's code does: without the gate, and
      without bringing the products to mean 0 and std 1.
    head_size: K of both models, needed if they have fewer key and value heads than
      query heads.

  Raises:
    InputError: ids are outside a vocabulary, a model has fewer than two layers, or
      heads are grouped and head_size is missing.
  """
  sizes = [len(params['embedding']) for params in (params_a, params_b)]
  ids = np.arange(max(0, min(sizes) - ICS_TOKENS), min(sizes)) if ids is None else np.asarray(ids)
  if len(ids) < 2 or ids.min() < 0 or ids.max() >= min(sizes):
    raise InputError(f'ids must be at least two from 0 to {min(sizes) - 1}, which both models '
                     'have')
  return _finite(_cosine(*(_invariants(params, jnp.asarray(ids), companion, head_size)
                           for params in (params_a, params_b))))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _invariants(params, ids, companion, head_size):
  x_ND = params['embedding'][ids]
  last = [_kernel(params, name)[-ICS_LAYERS:]
          for name in ('query', 'key', 'value', 'output', 'up', 'down')]
  if len(last[0]) < ICS_LAYERS:
    raise InputError(f'the fingerprint needs {ICS_LAYERS} layers; a model has {len(last[0])}')
  query, key, value, output, up, down = last
  key, value = (_repeat_heads(kernel, query.shape[-1], head_size) for kernel in (key, value))
  if 'gate' in params['blocks'] and not companion:
    up = up * _kernel(params, 'gate')[-ICS_LAYERS:]
  product = lambda left_LDF, right_LFD: (x_ND @ left_LDF) @ (right_LFD @ x_ND.T)
  with jax.default_matmul_precision('highest'):
    invariants = [product(query, key.mT), product(value, output), product(up, down)]
  if companion:
    return invariants
  centre = lambda m_LNN: m_LNN - m_LNN.mean((1, 2), keepdims=True)
  return [centre(m_LNN) / m_LNN.std((1, 2), keepdims=True) for m_LNN in invariants]


def _repeat_heads(kernel_LDF, num_columns, head_size):
  """Each key or value head once for every query head of its group."""
  L, D, F = kernel_LDF.shape
  if F == num_columns:
    return kernel_LDF
  if head_size is None:
    raise InputError('these models have fewer key heads than query heads: give head_size')
  heads = kernel_LDF.reshape(L, D, F // head_size, head_size)
  return jnp.repeat(heads, num_columns // F, axis=2).reshape(L, D, num_columns)
