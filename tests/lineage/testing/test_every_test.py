"""Each witness says what it can see, and why if it says nothing."""

import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alterations, dossiers, reading, witnesses
from bornbiased_jax.lineage.permutations import CalibratedResult
from bornbiased_jax.models.initialization import init_params
from small_networks import ALIGNED, GPT2, LLAMA

TOKENS, GAUSSIAN = Probe('tokens', 300, 6), Probe('gaussian', 40, 6)


def dossier(config, params):
  return dossiers.take(config, params, TOKENS)


def test_every_witness_hears_a_copy_and_nobody_else():
  params, other = init_params(ALIGNED, 1), init_params(ALIGNED, 2)
  probe = dossiers.vector_probe(ALIGNED, TOKENS)
  for suspect, related in ((params, True), (other, False)):
    heard = witnesses.hear(dossier(ALIGNED, params), dossier(ALIGNED, suspect), 0)
    aligned, fit = witnesses.hear_aligned((ALIGNED, params), (ALIGNED, suspect), probe, 0)
    heard |= aligned
    assert heard.keys() == witnesses.WITNESSES.keys()
    assert all((result.z > 4.5) == related for result in heard.values()), heard
    assert (fit > 0.99) == related


def test_changed_signs_are_heard_by_squares():
  params = init_params(ALIGNED, 1)
  flipped = alterations.flip_channels(ALIGNED, params, jax.random.key(0))
  heard = witnesses.hear(dossier(ALIGNED, params), dossier(*flipped), 0)
  assert heard['tokens'].z < -4 and heard['tokens, any sign'].z > 10


def test_witnesses_say_why_they_say_nothing():
  a, b = dossier(LLAMA, init_params(LLAMA, 1)), dossier(GPT2, init_params(GPT2, 1))
  heard = witnesses.hear(a, b, 0)
  assert 'gated' in heard['unit order'] and isinstance(heard['value order'], CalibratedResult)
  alone = dossiers.of_fingerprint(a.tokens)
  heard = witnesses.hear(a, alone, 0)
  assert 'weights' in heard['unit order'] and 'not known' in heard['vectors']
  aligned, fit = witnesses.hear_aligned((LLAMA, init_params(LLAMA, 1)),
                                        (GPT2, init_params(GPT2, 1)), TOKENS, 0)
  assert fit is None and 'no basis in common' in aligned['aligned answers']


def test_fingerprints_of_different_probes_are_refused():
  larger = dataclasses.replace(GPT2, vocab_size=90)
  a, b = (reading.fingerprint(config, init_params(config, 1), TOKENS)
          for config in (GPT2, larger))
  with pytest.raises(InputError, match='num_ids=70 lets both read the same'):
    witnesses.check_probes(a, b)


def test_neither_positions_nor_a_little_training_hide_a_shared_input():
  positions = dataclasses.replace(GPT2, positions='learned')
  a, b = reading.of_seeds(positions, [1, 2], GAUSSIAN)
  assert np.abs(a.input_ND - b.input_ND).max() > 0.01 and witnesses.input_is_shared(a, b)
  a, b = reading.of_seeds(GPT2, [1, 2], Probe('tokens', 40, 6), embedding_seed=9)
  change_ND = b.input_ND.std() * np.random.default_rng(3).standard_normal(b.input_ND.shape)
  moved = lambda share: dataclasses.replace(b, input_ND=b.input_ND + share * change_ND)
  assert witnesses.input_is_shared(a, moved(0.1))
  assert not witnesses.input_is_shared(a, moved(0.3))
