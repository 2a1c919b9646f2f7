"""Settings of experiments that compare networks."""

import dataclasses
from typing import Annotated

from bornbiased_jax.names import STREAM

from .. import launcher
from .parsing import choice, optional, some_of, whole
from .program import ExperimentSettings, Kind, Length, NumSequences, ProbeSeed, setting

METHODS = launcher.keys(launcher.LIBRARY / 'lineage/baselines/methods.py', 'METHODS')
Study = Annotated[str | None, Kind(
    str, 'folder of experiments.training_study, whose checkpoints are compared',
    'a folder of experiments.training_study')]
Methods = Annotated[list[str], Kind(
    some_of(*METHODS), f'fingerprints to compare, comma-separated, of {", ".join(METHODS)}')]
Stream = Annotated[str, Kind(
    choice(*STREAM), 'read directories of transformers layer by layer, with one layer in memory: '
    'auto, if they do not fit, always or never')]


@dataclasses.dataclass(frozen=True)
class Inputs(ExperimentSettings):
  """Random sequences that networks read."""

  num_sequences: NumSequences = setting(2000)
  length: Length = setting(64)
  probe_seed: ProbeSeed = setting(0)


@dataclasses.dataclass(frozen=True)
class SharedInputs(Inputs):
  """Sequences for networks that may have different vocabularies."""

  num_ids: int | None = setting(
      None, optional(whole), 'random token ids are drawn below this number, so that networks of '
      'different vocabularies read the same; if not given, below the smallest of their '
      'vocabularies')
