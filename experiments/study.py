"""Networks of known lineage: where experiments.training_study keeps them, and how two of them are compared."""

from pathlib import Path
from types import SimpleNamespace

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import seedprint
from bornbiased_jax.lineage.methods import METHODS, Score, Subject
from bornbiased_jax.storage import checkpoint
from experiments.command_line import KINDS, choice, flagged, listed, required

STUDY_KINDS = KINDS | {
    'study': (required('a folder of experiments.training_study'),
              'folder of experiments.training_study, whose checkpoints are compared'),
    'methods': (listed(choice(*METHODS)), f'fingerprints, of {", ".join(METHODS)}'),
}


def run_of(settings: SimpleNamespace, phase: str, seed: int) -> Path:
  """The run of a seed on 'english', which must be there, or on 'python', which need not."""
  run = Path(settings.study).expanduser() / phase / f'seed_{seed}'
  if phase == 'english' and 0 not in checkpoint.steps(run):
    raise InputError(f'--study: {run} has no checkpoint of step 0; give a folder of experiments.training_study, '
                     'or other --seeds')
  return run


def with_others(seeds: list[int]) -> list[tuple[int, int]]:
  """Each seed beside the next, and the last beside the first."""
  if len(seeds) < 2:
    raise InputError('--seeds: at least two, since networks of different seeds are compared')
  return list(zip(seeds, [*seeds[1:], seeds[0]], strict=True))


def check_num_sequences(settings: SimpleNamespace, config: ModelConfig) -> None:
  """Raises InputError where what two networks read in common could not be projected out."""
  flagged('num_sequences', seedprint.check_projectable, settings.num_sequences, config.width)


def subject(config: ModelConfig, params: dict, settings: SimpleNamespace) -> Subject:
  """A network as methods take it."""
  return Subject(config, params, Probe('tokens', settings.num_sequences, settings.length, settings.probe_seed))


def compare(method: str, base: Subject, suspect: Subject) -> Score:
  """Score and log10 p; None where the architecture of either is not one that the method compares."""
  try:
    return METHODS[method].score(base, suspect)
  except InputError:
    return Score(None)
