"""Every fingerprint behind one interface: two networks in, a score and, where the method has one, a p-value out."""

from collections.abc import Callable, Iterable
import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import numpy as np

from bornbiased_jax.analysis.ensemble import in_batches
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alignment, baselines, fingerprints, published, verdict
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.seedprint import calibrated_test
from bornbiased_jax.models.transformer import head_of, read

NUM_LOGITS = 256
# REEF as published: 200 statements, layer 18 of 32.
NUM_STATEMENTS = 200
STATES_DEPTH = 18 / 32
# Seeds of fresh networks, which nobody else chooses.
FIRST_REFERENCE = 2**31


class Score(NamedTuple):
  """Higher means more alike; log10_p is None of a method without a null of its own."""

  score: float
  log10_p: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
  """A network, and what methods read of it, computed when first asked for.

  Args:
    config: its architecture.
    params: its parameters.
    probe: random tokens; of other probes number, length and seed are the same.
  """

  config: ModelConfig
  params: dict
  probe: Probe

  @functools.cached_property
  def hidden(self) -> Fingerprint:
    """What the network answers to the probe."""
    return fingerprints.fingerprint(self.config, self.params, self.probe)

  @functools.cached_property
  def logits(self) -> Fingerprint:
    """Logits of the first NUM_LOGITS ids, in place of the final norm (`fingerprint` with logit_ids)."""
    head_VD = head_of(self.config, self.params)[:NUM_LOGITS]
    with jax.default_matmul_precision('highest'):
      return dataclasses.replace(self.hidden, hidden_ND=np.asarray(self.hidden.hidden_ND @ head_VD.T))

  @functools.cached_property
  def states(self) -> np.ndarray:
    """Last-token states [n, D] of a middle layer, for REEF; its statements are random tokens too."""
    layer = max(0, round(STATES_DEPTH * self.config.num_layers) - 1)
    states_of = functools.partial(_states, fingerprints.exact(self.config), self.probe, layer, self.params)
    return in_batches(states_of, NUM_STATEMENTS, self.probe.length)

  @property
  def pair(self) -> tuple[ModelConfig, dict]:
    """Configuration and parameters, as `alignment` takes them."""
    return self.config, self.params


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _states(config, probe, layer, params, index_B):
  with jax.default_matmul_precision('highest'):
    return read(config, params, probe.inputs(config, index_B), ('residual_last',))['residual_last'][layer]


def _of_same_tokens(score: Callable[[Subject, Subject], Score]) -> Callable[[Subject, Subject], Score]:
  """A method of two networks that read the same, which raises InputError where they did not."""
  def checked(base, suspect):
    if len({fingerprints.probe_settings(each.probe, each.config)['hash'] for each in (base, suspect)}) > 1:
      raise InputError('networks of different vocabularies did not read the same: give both the same num_ids')
    return score(base, suspect)

  return checked


def _calibrated(base: Fingerprint, suspect: Fingerprint) -> Score:
  shared = base.input_ND if verdict.input_is_shared(base, suspect) else None
  return _z(calibrated_test(base.hidden_ND, suspect.hidden_ND, shared, num_permutations=1))


def _z(result):
  return Score(result.z, result.log10_p)


def _aligned(base: Subject, suspect: Subject) -> Score:
  probe = dataclasses.replace(base.probe, kind='gaussian', num_ids=None)
  return _z(alignment.aligned_test(base.pair, suspect.pair, probe, num_permutations=1))


def _published(base: Subject, suspect: Subject) -> Score:
  hidden = base.hidden.hidden_ND, suspect.hidden.hidden_ND
  result = published.published_test(*hidden, null=_null_taus(*hidden[0].shape))
  # NaN, where too few dimensions are common to both, is no evidence.
  log10_p = math.log10(max(result.p_value, 1e-300)) if result.p_value == result.p_value else 0.0
  return Score(-log10_p, log10_p)


_null_taus = functools.lru_cache(maxsize=4)(published.null_taus)


def _units(base: Subject, suspect: Subject, against_gate: bool) -> Score:
  result = alignment.matched_units_test(base.params, suspect.params, against_gate=against_gate)
  return Score(-result.log10_p, result.log10_p)


def _ics(base: Subject, suspect: Subject) -> Score:
  if base.config.head_size != suspect.config.head_size:
    raise InputError('heads of different sizes have no common invariants here')
  return Score(baselines.ics(base.params, suspect.params, head_size=base.config.head_size))


class Method(NamedTuple):
  """A fingerprint of two networks.

  Attributes:
    score: base and suspect → Score.
    unit: of the score.
    threshold: the similarity above which its authors call two networks the same; None of a z or p.
  """

  score: Callable[[Subject, Subject], Score]
  unit: str = 'similarity'
  threshold: float | None = baselines.PUBLISHED_THRESHOLD


METHODS: dict[str, Method] = {
    'SeedPrint': Method(_of_same_tokens(lambda base, suspect: _calibrated(base.hidden, suspect.hidden)), 'z', None),
    'SeedPrint aligned': Method(_aligned, 'z', None),
    # Ids mean the same in all networks, so that trained ones agree, related or not: z has no law.
    'SeedPrint logits': Method(_of_same_tokens(
        lambda base, suspect: Score(_calibrated(base.logits, suspect.logits).score)), 'z', None),
    'SeedPrint published': Method(_of_same_tokens(_published), '-log10 p', None),
    'MLP units': Method(functools.partial(_units, against_gate=False), '-log10 p', None),
    'MLP units by gate': Method(functools.partial(_units, against_gate=True), '-log10 p', None),
    'Intrinsic': Method(lambda base, suspect: Score(baselines.intrinsic(base.params, suspect.params))),
    'REEF': Method(_of_same_tokens(lambda base, suspect: Score(baselines.reef(base.states, suspect.states)))),
    'REEF unbiased': Method(_of_same_tokens(lambda base, suspect: Score(
        baselines.reef(base.states, suspect.states, unbiased=True)))),
    'PCS': Method(lambda base, suspect: Score(baselines.pcs(base.params, suspect.params))),
    'ICS': Method(_ics),
}


def published_verdict(method: str, score: Score) -> bool:
  """Whether the method's authors would call it the same network: above .8, or, of a z or p, p below .01."""
  limit = METHODS[method].threshold
  if limit is not None:
    return score.score > limit
  return score.log10_p < -2 if score.log10_p is not None else score.score > 2.326


def reference_scores(method: str, base: Subject, references: Iterable[Subject]) -> list[float]:
  """Scores of the base with K networks that are unrelated to it: a null for methods that have none.

  Raises:
    InputError: as the method, of networks that it cannot compare.
  """
  return [METHODS[method].score(base, reference).score for reference in references]


def rank_p_value(score: float, references: list[float]) -> float:
  """(1 + references as large) / (K + 1): a p-value if an unrelated suspect is like the references.

  Trained networks are not like random ones: they are more alike.
  """
  return (1 + sum(reference >= score for reference in references)) / (1 + len(references))
