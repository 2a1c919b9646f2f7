"""All fingerprints behind one interface: from two models to a score.

A method that has a null distribution of its own gives a p-value as well.
"""

from collections.abc import Callable, Iterable
import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import verdict
from bornbiased_jax.lineage.baselines import matched_units, published, similarities
from bornbiased_jax.lineage.comparison import every_test, seedprint
from bornbiased_jax.lineage.evidence import hidden_states
from bornbiased_jax.lineage.evidence import signature as signatures
from bornbiased_jax.lineage.evidence.hidden_states import HiddenStates, input_is_shared
from bornbiased_jax.lineage.evidence.signature import Signature
from bornbiased_jax.models.batches import in_batches
from bornbiased_jax.models.transformer import head_of, read

NUM_LOGITS = 256
# As REEF was published: 200 statements, layer 18 of 32.
NUM_STATEMENTS = 200
STATES_DEPTH = 18 / 32
# The first seed of fresh reference networks: so large that nobody else is likely to choose it.
FIRST_REFERENCE = 2**31
# What a public kit takes for the architecture: seven numbers and the family, for which four fields
# stand here. It gives two models that agree in it a score of 1.0, and does not compare weights.
ARCHITECTURE = ('num_layers', 'num_heads', 'num_kv_heads', 'width', 'mlp_width', 'vocab_size',
                'length', 'norm', 'positions', 'activation', 'gated_mlp')


class Score(NamedTuple):
  """A score, higher if two models are more alike, and log10 of its p-value.

  The latter is None for a method without a null distribution of its own.
  """

  score: float
  log10_p: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
  """A model and what methods read from it, which is computed when first needed.

  Args:
    config: the architecture.
    params: the parameters.
    probe: a probe of random tokens. Methods that need another probe take its
      number of sequences, length and seed.
    statements: token ids [n, T] of text, which REEF compares states of. None means the first 200
      sequences of the probe.

  Example:
    >>> from bornbiased_jax import analysis, lineage, storage
    >>> config, params = storage.open('tiny_gpt2:42').load()
    >>> network = lineage.Subject(config, params, analysis.Probe('tokens', 300, 8))
    >>> round(lineage.METHODS['PCS'].score(network, network).score, 3)
    1.0
  """

  config: ModelConfig
  params: dict
  probe: Probe
  statements: np.ndarray | None = None

  @functools.cached_property
  def signature(self) -> Signature:
    """All that a verdict reads of the model."""
    return signatures.of_network(self.config, self.params, self.probe)

  @functools.cached_property
  def hidden(self) -> HiddenStates:
    """The model's last-token hidden states for the probe."""
    return hidden_states.of_network(self.config, self.params, self.probe)

  @functools.cached_property
  def logits(self) -> np.ndarray:
    """The logits [n, NUM_LOGITS] of the first ids there."""
    head_VD = head_of(self.config, self.params)[:NUM_LOGITS]
    with jax.default_matmul_precision('highest'):
      return np.asarray(self.hidden.hidden_ND @ head_VD.T)

  @functools.cached_property
  def states(self) -> np.ndarray:
    """Last-token states [n, D] of a middle layer, for REEF."""
    config = hidden_states.exact(self.config)
    tokens_NT = self.statements
    if tokens_NT is None:
      tokens_NT = np.asarray(self.probe.inputs(config, jnp.arange(NUM_STATEMENTS)))
    layer = max(0, round(STATES_DEPTH * config.num_layers) - 1)
    states_of = functools.partial(_states, config, layer, self.params)
    return in_batches(lambda index_B: states_of(tokens_NT[index_B]), *tokens_NT.shape)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _states(config, layer, params, tokens_BT):
  with jax.default_matmul_precision('highest'):
    return read(config, params, tokens_BT, ('residual_last',))['residual_last'][layer]


def _of_same_tokens(
    score: Callable[[Subject, Subject], Score]) -> Callable[[Subject, Subject], Score]:
  """Makes a method raise InputError if its two networks did not read the same tokens."""
  def checked(base, suspect):
    hashes = {hidden_states.probe_settings(each.probe, each.config)['hash']
              for each in (base, suspect)}
    if len(hashes) > 1:
      raise InputError('models of different vocabularies did not read the same: give both the '
                       'same num_ids')
    return score(base, suspect)

  return checked


def _test(name: str) -> Callable[[Subject, Subject], Score]:
  """The method that makes one of the verdict's tests."""
  def score(base, suspect):
    result = _run_tests(base, suspect)[name]
    if not result.counts:
      raise InputError(str(result.reason))
    return Score(result.statistic if result.z is None else result.z, result.log10_p)

  return score


# Several methods ask for the same pair one after another.
@functools.lru_cache(maxsize=1)
def _run_tests(base, suspect):
  return every_test.run_tests(base.signature, suspect.signature)


def _verdict(base: Subject, suspect: Subject) -> Score:
  """The p-value of a pair that is called related; of others, no evidence."""
  report = judge(base, suspect)
  log10_p = math.log10(report['p_value']) if report['verdict'] == 'related' and not report[
      'identical'] else -300.0 * report['identical']
  return Score(-log10_p, log10_p)


def judge(base: Subject, suspect: Subject) -> dict:
  """The verdict on two models that are in memory (`verdict.compare`)."""
  return verdict.compare(base.signature, suspect.signature)


def _logits(base, suspect):
  shared = base.hidden.input_ND if input_is_shared(base.hidden, suspect.hidden) else None
  return Score(seedprint.calibrated_test(base.logits, suspect.logits, shared).z)


def _published(base: Subject, suspect: Subject, p_value: str) -> Score:
  """A field of `PublishedResult` as a score."""
  # NaN means that too few dimensions are common to both: no evidence.
  p = np.nan_to_num(getattr(_published_test(base, suspect), p_value), nan=1.0)
  log10_p = math.log10(max(p, 1e-300))
  return Score(-log10_p, log10_p)


# Both published tests ask for the same pair one after another.
@functools.lru_cache(maxsize=1)
def _published_test(base, suspect):
  hidden = base.hidden.hidden_ND, suspect.hidden.hidden_ND
  return published.published_test(*hidden, null=_null_taus(*hidden[0].shape))


_null_taus = functools.lru_cache(maxsize=4)(published.null_taus)


def _units(base: Subject, suspect: Subject, against_gate: bool) -> Score:
  result = matched_units.matched_units_test(base.params, suspect.params, against_gate=against_gate)
  return Score(-result.log10_p, result.log10_p)


def _ics(base: Subject, suspect: Subject) -> Score:
  if base.config.head_size != suspect.config.head_size:
    raise InputError('models with heads of different sizes have no ICS')
  return Score(similarities.ics(base.params, suspect.params, head_size=base.config.head_size))


def _architecture(base: Subject, suspect: Subject) -> Score:
  """1 for equal architectures, and 0 for others."""
  return Score(float(all(getattr(base.config, name) == getattr(suspect.config, name)
                         for name in ARCHITECTURE)))


class Method(NamedTuple):
  """A way to compare two models.

  Attributes:
    score: function from base and suspect to a Score.
    unit: unit of the score.
    threshold: the similarity above which its authors call two models the same.
      None if the score is a z or a p-value.
    disputed: scores that were published of models whose descent was disputed, or of unrelated
      ones to show that the method errs.
  """

  score: Callable[[Subject, Subject], Score]
  unit: str = 'similarity'
  threshold: float | None = similarities.PUBLISHED_THRESHOLD
  disputed: tuple[float, ...] = ()


METHODS: dict[str, Method] = {
    'Verdict': Method(_verdict, '-log10 p', None),
    **{name: Method(_test(name), 'z', None) for name in every_test.DECIDING},
    'SeedPrint': Method(_of_same_tokens(_test('SeedPrint')), 'z', None),
    # An id means the same in all networks, so trained networks agree, related or not.
    # The null distribution of this z is unknown: the score comes without a p-value.
    'SeedPrint logits': Method(_of_same_tokens(_logits), 'z', None),
    'SeedPrint published': Method(_of_same_tokens(
        functools.partial(_published, p_value='p_value')), '-log10 p', None),
    'SeedPrint published U': Method(_of_same_tokens(
        functools.partial(_published, p_value='p_value_u')), '-log10 p', None),
    'MLP units': Method(functools.partial(_units, against_gate=False), '-log10 p', None),
    'MLP units by gate': Method(functools.partial(_units, against_gate=True), '-log10 p', None),
    'Intrinsic': Method(
        lambda base, suspect: Score(similarities.intrinsic(base.params, suspect.params)),
        # deepseek-7b and llama2-7b, unrelated; Pangu Pro MoE and Qwen2.5-14B.
        disputed=(0.91, 0.927)),
    'REEF': Method(_of_same_tokens(
        lambda base, suspect: Score(similarities.reef(base.states, suspect.states)))),
    'REEF unbiased': Method(_of_same_tokens(lambda base, suspect: Score(
        similarities.reef(base.states, suspect.states, unbiased=True)))),
    'PCS': Method(lambda base, suspect: Score(similarities.pcs(base.params, suspect.params))),
    'ICS': Method(_ics),
    # No threshold was published; Solar-Open-100B and GLM-4.5-Air, withdrawn.
    'norm gains': Method(
        lambda base, suspect: Score(similarities.norm_gains(base.params, suspect.params)),
        threshold=0.989, disputed=(0.989,)),
    'architecture': Method(_architecture, threshold=0.85, disputed=(1.0,)),
}


def published_verdict(method: str, score: Score) -> bool:
  """Whether the method's authors call models of this score the same: above 0.8, or p < 0.01."""
  limit = METHODS[method].threshold
  if limit is not None:
    return score.score > limit
  return score.log10_p < -2 if score.log10_p is not None else score.score > 2.326


def reference_scores(method: str, base: Subject, references: Iterable[Subject]) -> list[float]:
  """Scores of the base with unrelated models: a null for `rank_p_value`."""
  return [METHODS[method].score(base, reference).score for reference in references]


def rank_p_value(score: float, references: list[float]) -> float:
  """The p-value of a score among K reference scores: (1 + number as large) / (K + 1).

  It is valid if an unrelated suspect is like the references. Random models are
  no such references for trained ones, which are more alike.

  Example:
    >>> from bornbiased_jax import lineage
    >>> lineage.rank_p_value(3.0, [0.5, -1.2, 0.1])
    0.25
  """
  # A NaN counts against the score.
  return (1 + sum(not reference < score for reference in references)) / (1 + len(references))
