"""Which of two tokens is preferred, and how often, by quantiles and Student's t-distribution."""

import numpy as np
from scipy import special, stats


def normal_quantiles(count):
  """So many equally probable values of a normal number."""
  return stats.norm.ppf((np.arange(count) + 0.5) / count)


def preferred_of_two(along, dimensions):
  """The share of the preferred one of two tokens, whose logit leads by c |m_0 - m_1|.

  `along` has values of c, and the last two axes of the result average the lead and the length of
  what is left of the two rows, which is multiplied by the cosine of a random angle.
  """
  lead_Q1 = np.abs(normal_quantiles(100))[:, None]
  length_Q = np.sqrt(stats.chi2.ppf((np.arange(20) + 0.5) / 20, dimensions) / dimensions)
  tangent = np.asarray(along / np.sqrt(1 - along**2))[..., None, None]
  cosine = np.minimum(1, tangent * lead_Q1 / length_Q / np.sqrt(dimensions))
  student = cosine * np.sqrt((dimensions - 1) / np.maximum(1e-12, 1 - cosine**2))
  return special.stdtr(dimensions - 1, student)
