"""Compares networks of a cell with their initialization, their siblings and each other."""

from collections.abc import Iterator
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import lineage
from bornbiased_jax.analysis import Probe, similarity
from bornbiased_jax.data import Corpus, spaced_windows
from bornbiased_jax.lineage import Signature
from bornbiased_jax.lineage.baselines import published
from bornbiased_jax.lineage.comparison.every_test import TESTS as TESTS_OF_LINEAGE
from bornbiased_jax.lineage.evidence import signature as signatures
from bornbiased_jax.models import init_params, next_token_loss

from . import training
from .training import Cell

PUBLISHED = 'SeedPrint, published'
TESTS = (*TESTS_OF_LINEAGE, PUBLISHED)
# What of the weights is compared: all, or what gradients added.
WEIGHTS = 'end', 'learned'
OWN_TEXT, OTHER_TEXT = 0, 1


_loss = jax.jit(next_token_loss, static_argnums=0)


def rows(cell: Cell, seeds: list[int], branches: tuple[int, ...], probe: Probe, data: Corpus,
         held_out: Corpus) -> Iterator[dict]:
  """A row per pair: each network with its initialization, its siblings and each other network.

  All read the same text in the same order, so that nothing but the seed tells two apart. Siblings
  read other text from where they branch off; at initialization is the positive control.
  """
  config = training.config_of(cell, data.vocab_size)
  texts = [training.text(cell, data, data_seed) for data_seed in (OWN_TEXT, OTHER_TEXT)]
  valid_NT = jnp.asarray(spaced_windows(held_out.tokens, 64, cell.length))
  take = lambda params: signatures.of_network(config, params, probe)
  grown: dict[str, list[Signature]] = {weights: [] for weights in WEIGHTS}
  for seed in seeds:
    start = init_params(config, seed)
    ends = training.grow(cell, start, *texts, branches)
    about = {'seeds': [seed, seed],
             'loss': float(_loss(config, ends[None], valid_NT)),
             'slope': slope(cell, start, ends[None]), 'law': cell.survival}
    before = take(start)
    for weights in WEIGHTS:
      after = {branch: take(learned(cell, start, end) if weights == 'learned' else end)
               for branch, end in ends.items()}
      grown[weights].append(after[None])
      yield {'pair': 'birth', 'weights': weights} | about | compare(before, after[None])
      for branch in branches:
        yield {'pair': 'sibling', 'weights': weights, 'seeds': [seed, seed],
               'branch': branch / training.SEGMENTS} | compare(after[None], after[branch])
  for weights, of_seed in grown.items():
    for (a, base), (b, suspect) in itertools.combinations(zip(seeds, of_seed, strict=True), 2):
      yield {'pair': 'unrelated', 'weights': weights, 'seeds': [a, b]} | compare(base, suspect)


def learned(cell: Cell, start: dict, end: dict) -> dict:
  """w_T − Π(1 − λ lr_t) w_0: what is left of all gradients.

  Gains and biases stay as they are, without which there is no network.
  """
  left = lambda path, w0, w: w if path[-1].key in ('scale', 'bias') else w - w0 * (
      cell.survival if training.is_decayed(cell, path) else 1.0)
  return jax.tree_util.tree_map_with_path(left, start, end)


def slope(cell: Cell, start: dict, end: dict) -> float:
  """⟨w_T, w_0⟩ / |w_0|² over all weights that decay."""
  pairs = [(np.asarray(w0, np.float64), np.asarray(w, np.float64)) for is_decayed, w0, w in zip(
      *map(jax.tree.leaves, (training.decays(cell, start), start, end)), strict=True) if is_decayed]
  return float(sum(np.vdot(w, w0) for w0, w in pairs) / sum(np.vdot(w0, w0) for w0, _ in pairs))


def compare(base: Signature, suspect: Signature) -> dict:
  """The verdict, and z, likeness and p-value of each of TESTS.

  Of a test without p-value the likeness is that above its level. `overlap` is the cosine of the
  directions to which hidden states contract.
  """
  report = lineage.compare(base, suspect)
  states = [each.states.hidden_ND for each in (base, suspect)]
  known = published.published_test(*states, null=_null(*states[0].shape))
  directions = [np.asarray(similarity.normalize(jnp.asarray(x))).mean(axis=0) for x in states]
  lengths = [np.linalg.norm(each) for each in directions]
  return {'verdict': report['verdict'], 'p_value': report['p_value'],
          'tests': {row['test']: found(row['z'], row['statistic'], row['p_value'], row['level'])
                    for row in report['tests']}
                   | {PUBLISHED: found(known.z, known.statistic, known.p_value_z)},
          'published_t': known.p_value, 'published_u': known.p_value_u,
          'overlap': float(np.vdot(*directions) / np.prod(lengths)), 'contraction': [
              float(each) for each in lengths]}


_null = functools.cache(published.null_taus)


def found(z: float | None, statistic: float | None, p_value: float | None,
          level: float | None = None) -> dict[str, float | None]:
  likeness = None if statistic is None else statistic - (level or 0.0)
  return {name: None if value is None else float(f'{value:.4g}') for name, value in (
      ('z', z), ('likeness', likeness), ('p_value', p_value))}
