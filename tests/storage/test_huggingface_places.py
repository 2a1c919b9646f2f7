"""Every tensor of a directory has one place among our leaves, and every leaf is filled once."""

from collections import Counter

import numpy as np
import pytest

from bornbiased_jax.storage.huggingface_config import read_config
from bornbiased_jax.storage.huggingface_places import find, groups, leaf_shapes
from make_goldens import GOLDENS, MODELS


@pytest.mark.parametrize('name', MODELS)
def test_every_leaf_is_filled_once(name):
  config, family = read_config(GOLDENS / name / 'config.json')
  shapes = leaf_shapes(config)
  wanted = list(groups(config, family, shapes))
  tensors = find(GOLDENS / name, config, family, wanted)
  times = {leaf: np.zeros(shape) for leaf, shape in shapes.items()}
  for group in wanted:
    for stored, index in group.stored():
      ones = np.ones(tensors[stored].shape)
      for ours, theirs in group.aligned([times[leaf] for leaf in group.leaves], index, ones, config,
                                        family):
        ours += theirs
  assert all((count == 1).all() for count in times.values())


@pytest.mark.parametrize('name', MODELS)
def test_every_tensor_is_read_once(name):
  config, family = read_config(GOLDENS / name / 'config.json')
  wanted = list(groups(config, family, leaf_shapes(config)))
  read = Counter(stored for group in wanted for stored, _ in group.stored())
  assert set(read.values()) == {1}
  left = find(GOLDENS / name, config, family, wanted).keys() - read.keys()
  assert left <= {f'{family.head}.weight'}
