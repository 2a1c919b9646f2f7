"""Are two models alike in a way that no change of their parts can hide?

MLP units, value channels and residual channels can all be exchanged or mixed without changing the
function of a model. Such a copy has lost every order. Three things remain to compare: hidden states
up to a rotation, MLP units in any order, and numbers of layers that no such change alters
(`features.invariants`). They cannot show descent, as models that learned the same are alike too,
but they can keep a verdict from being 'unrelated'.
"""

import jax
import numpy as np
import scipy

from bornbiased_jax.lineage import thresholds
from bornbiased_jax.lineage.comparison.likeness import Blocks, align, combine, flat
from bornbiased_jax.lineage.comparison.order import orthonormal, unit_rows
from bornbiased_jax.lineage.comparison.result import TestResult, does_not_apply
from bornbiased_jax.lineage.evidence.features import INVARIANTS

Array = np.ndarray | jax.Array
# Units of a layer that are compared with each other, in whatever order.
_MOST_UNITS = 2048


def states_test(hidden_a: np.ndarray, hidden_b: np.ndarray) -> TestResult:
  """Are hidden states alike in some basis? What two contexts of one last token make differ.

  The sequences 2 i and 2 i + 1 end in the same token, so that their difference is what the context
  adds. The statistic is the linear CKA of these differences, with the unbiased estimator of HSIC
  (Song et al. 2012): 1 if one model is the other in another basis, and near 0 if both are
  random. Models that were trained on one text have up to 0.4.
  """
  a, b = ((x[0::2][:len(x) // 2] - x[1::2]).astype(np.float64) for x in (hidden_a, hidden_b))
  if len(a) < 4:
    return does_not_apply('they read too few sequences')
  size = np.sqrt(max(unbiased_hsic(a, a), 0) * max(unbiased_hsic(b, b), 0))
  statistic = float(unbiased_hsic(a, b) / size) if size > 0 else 0.0
  return TestResult(statistic, level=thresholds.ALIKE_IN_ANY_BASIS)


def unbiased_hsic(a_ND: Array, b_NE: Array) -> Array:
  """tr KL + 1K1 1L1 / ((n - 1)(n - 2)) - 2 1KL1 / (n - 2), of arrays of numpy or JAX.

  K and L are the Gram matrices without their diagonals. The factor 1 / (n (n - 3)) of
  Song et al. (2012) cancels in the CKA.
  """
  n, own = len(a_ND), [(x**2).sum(axis=1) for x in (a_ND, b_NE)]
  rows = [x @ x.sum(axis=0) - diagonal for x, diagonal in zip((a_ND, b_NE), own, strict=True)]
  return (((a_ND.T @ b_NE)**2).sum() - own[0] @ own[1]
          + rows[0].sum() * rows[1].sum() / ((n - 1) * (n - 2)) - 2 * rows[0] @ rows[1] / (n - 2))


def units_test(a: list[Blocks], b: list[Blocks], embedding_a: np.ndarray,
               embedding_b: np.ndarray) -> TestResult:
  """Have two models the same MLP units, in whatever order and basis?

  The basis of one is turned into the other's (`embedding_change`, from the embeddings of the same
  ids). For each unit of the model that has fewer, or fewer layers, the most similar one of a
  layer of the other is found: units and layers may have been cut. The statistic is their mean
  likeness in the layer of equal number less that in other layers, or, of models of different
  depths, in the most similar layer less that in the others: some 0.7 for copies, and up to 0.12 for
  models that were trained on one text.
  """
  if not a or not b:
    return does_not_apply('one of the models has no MLP units')
  if a[0].keys() != b[0].keys():
    return does_not_apply('only one of the models has gated units')
  if min(len(a), len(b)) < 2:
    return does_not_apply('one of the models has only one layer')
  change_DE = embedding_change(embedding_a, embedding_b)
  turned = [{name: x @ change_DE for name, x in layer.items()} for layer in a]
  nearest_LL = np.array([[_nearest(x, y) for y in b] for x in turned])
  if len(a) > len(b):
    nearest_LL = nearest_LL.T
  # Of one depth the layers of equal number correspond, else that which is most alike.
  own_L = np.arange(len(a)) if len(a) == len(b) else nearest_LL.argmax(axis=1)
  is_own = own_L[:, None] == np.arange(nearest_LL.shape[1])
  statistic = float(nearest_LL[is_own].mean() - nearest_LL[~is_own].mean())
  return TestResult(statistic, level=thresholds.ALIKE_IN_ANY_ORDER)


def layers_test(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> TestResult:
  """Do layers agree in numbers that no disguise changes, beyond what all layers have in common?

  The quantiles of `features.invariants` are written as cosine modes. The first four are left out:
  training gives them to all models alike. Layers are paired by `align`, and each is compared less
  those next to it (`against_neighbours`), or of two layers less their mean. The statistic is the
  mean over modes of 2 Σ x y / (Σ x² + Σ y²) over layers: 1 for any disguised copy, 0 for
  independent models.
  """
  names = [name for name in INVARIANTS if name in a and name in b]
  if not names:
    return does_not_apply('they have no kind of features in common of which this was taken')
  if min(len(a[names[0]]), len(b[names[0]])) < 2:
    return does_not_apply('one of the models has only one layer')
  x_LM, y_LM = (np.concatenate([_modes(each[name]) for name in names], axis=1) for each in (a, b))
  pairs, is_sure = align(x_LM, y_LM)
  x_PM, y_PM = (each[list(chosen)] for each, chosen in zip((x_LM, y_LM), zip(*pairs, strict=True),
                                                           strict=True))
  less = against_neighbours if len(pairs) > 2 else lambda x_PM: x_PM - x_PM.mean(axis=0)
  x_PM, y_PM = less(x_PM), less(y_PM)
  size_M = (x_PM**2 + y_PM**2).sum(axis=0)
  agreement_M = 2 * (x_PM * y_PM).sum(axis=0) / np.maximum(size_M, 1e-30)
  # Where it is not sure which layers correspond, those were chosen that are most alike.
  is_chosen = len(x_LM) != len(y_LM) and not is_sure
  return TestResult(float(agreement_M.mean()),
                    level=thresholds.ALIKE_LAYERS * (2 if is_chosen else 1))


def against_neighbours(x_LM: np.ndarray) -> np.ndarray:
  """Each layer but the first and last, less the mean of those next to it, i ± 1 and i ± 2.

  So what changes with depth at a steady rate is 0.
  """
  L = len(x_LM)
  near = [[j for apart in (1, 2) if apart <= i < L - apart for j in (i - apart, i + apart)]
          for i in range(1, L - 1)]
  return np.stack([x_LM[i] - x_LM[each].mean(axis=0) for i, each in enumerate(near, 1)])


def _modes(quantile_LQ):
  """All cosine modes [L, M] of quantiles but the smoothest, and the last, which are noise."""
  return scipy.fft.dct(quantile_LQ.astype(np.float64), norm='ortho')[:, 4:48]


def _nearest(a, b):
  """Mean likeness of units of one layer, of any expert, to the most similar ones of another.

  Those of the layer that has fewer, as units of the other may have been cut.
  """
  def rows(layer, name):
    x = layer[name]
    # What experts have at one place has length 1 together.
    length = x.shape[2] ** -0.5 if x.ndim == 4 else 1.0
    return flat(x, name).reshape(-1, x.shape[-1]) / length

  cosine = {name: rows(a, name)[:_MOST_UNITS] @ rows(b, name)[:_MOST_UNITS].T for name in a}
  likeness_UV = combine(cosine)
  nearest = [likeness_UV.max(axis=1), likeness_UV.max(axis=0)]
  fewest = min(map(len, nearest))
  return float(np.mean([x.mean() for x in nearest if len(x) == fewest]))


def embedding_change(embedding_a: np.ndarray, embedding_b: np.ndarray) -> np.ndarray:
  """The W [D, E] with orthonormal rows or columns for which embedding_a W ≈ embedding_b.

  Rows count only by their direction, and in each of four rounds by how well they fitted in the
  one before: ids that never occur have nothing in common.
  """
  a, b = (unit_rows(x - _center(x)) for x in (embedding_a, embedding_b))
  weight_N1 = np.ones((len(a), 1), np.float32)
  for _ in range(4):
    change_DE = orthonormal(a.T @ (weight_N1 * b))
    weight_N1 = np.maximum(0, np.sum(a @ change_DE * b, axis=1, keepdims=True))**2
  return change_DE


def _center(x_ND):
  """Their mean, where those that are further from it than twice the median distance are nearer."""
  center_D = 0.0
  for _ in range(3):
    away_ND = x_ND - center_D
    size_N1 = np.linalg.norm(away_ND, axis=1, keepdims=True)
    nearer_N1 = np.minimum(1, 2 * np.median(size_N1) / np.maximum(size_N1, 1e-30))
    center_D = center_D + (nearer_N1 * away_ND).mean(axis=0)
  return center_D
