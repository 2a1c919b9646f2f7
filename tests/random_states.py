"""Answers to a probe that are nothing but noise."""

import numpy as np


def noise(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
