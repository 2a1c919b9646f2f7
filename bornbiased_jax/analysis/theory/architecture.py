"""What the theory of random networks reads of a configuration: its variances and its switches."""

import dataclasses

import jax
import numpy as np

from bornbiased_jax.analysis.probes import OF_IDS, OF_TEXT, Probe, kind_of
from bornbiased_jax.analysis.theory.hermite import choice_overlap
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError, check_count
from bornbiased_jax.models import attention, interventions
from bornbiased_jax.models.initialization import mean_activation

_STATIC = {'static': True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Architecture:
  """What the theory reads of a configuration, and of a probe.

  Architectures that differ in numbers alone share their compiled programs. Writes are the variance
  of an update over that of what a sublayer has computed inside.
  """

  num_layers: int = dataclasses.field(metadata=_STATIC)
  sublayers: str = dataclasses.field(metadata=_STATIC)
  parallel_residual: bool = dataclasses.field(metadata=_STATIC)
  activation: str = dataclasses.field(metadata=_STATIC)
  gated_mlp: bool = dataclasses.field(metadata=_STATIC)
  intervention: str = dataclasses.field(metadata=_STATIC)
  intervention_position: int = dataclasses.field(metadata=_STATIC)
  token_variance: float
  position_variance: float
  norm_epsilon: float
  score_variance: float
  value_variance: float
  attention_writes: float
  preactivation_std: float
  mean_activation: float
  mlp_writes: float
  # Of experts (`hermite.choice_overlap`); empty without them.
  overlap_R: np.ndarray
  # Of ALiBi, by head; empty without it.
  slopes_H: np.ndarray
  # The factor of each position of the model under the interventions that have one.
  factor_P: np.ndarray


def check(config: ModelConfig, length: int, probe: str | Probe) -> None:
  """Raises the errors of `infinite_width`."""
  check_count('length', length)
  if length > config.length:
    raise InputError(f'length={length} is more than the {config.length} positions of the model')
  if kind_of(probe) not in ('tokens', *OF_TEXT, 'gaussian', 'sphere'):
    raise InputError(f'probe={kind_of(probe)!r} is not one of tokens, gaussian, sphere, or a Probe '
                     'of a text')
  if isinstance(probe, Probe) and probe.length != length:
    raise InputError(f'length={length} is not that of the probe, {probe.length}')
  _check_known(config, length)


def _check_known(config, length):
  has_attention = config.sublayers != 'mlp_only'
  window = min((window for window in config.windows if window), default=length)
  for is_unknown, field in (
      (config.norm_place != 'before', f'norm_place={config.norm_place!r}'),
      (config.shared_mlp_width > 0, f'shared_mlp_width={config.shared_mlp_width}'),
      (has_attention and config.score_cap is not None, f'score_cap={config.score_cap}'),
      (has_attention and window < length, f'windows of {window} for {length} tokens')):
    if is_unknown:
      raise InputError(f'the theory of random networks does not know {field}')


def of(config: ModelConfig, probe: str | Probe) -> Architecture:
  """What the theory reads of a configuration that reads this probe."""
  is_centred = config.init_scheme == 'centred' and config.sublayers != 'attention_only'
  factor = config.embedding_factor**2 if kind_of(probe) in OF_IDS else 1.0
  slopes_H = attention.alibi_slopes(config)
  return Architecture(
      **{name: getattr(config, name) for name in (
          'num_layers', 'sublayers', 'parallel_residual', 'activation', 'gated_mlp',
          'intervention', 'norm_epsilon')},
      intervention_position=config.intervention_position if config.intervention == 'mask' else 0,
      token_variance=config.embedding_std**2 * factor,
      position_variance=config.embedding_std**2 * (config.positions == 'learned'),
      score_variance=_score_variance(config),
      value_variance=config.std_of('value')**2 * config.width,
      attention_writes=config.residual_std**2 * config.num_heads * config.head_size,
      preactivation_std=config.std_of('up') * config.width**0.5,
      mean_activation=mean_activation(config) if is_centred else 0.0,
      mlp_writes=config.residual_std**2 * config.mlp_width,
      overlap_R=_overlap(config),
      slopes_H=np.zeros(0, np.float32) if slopes_H is None else slopes_H,
      factor_P=_factors(config))


def _overlap(config):
  if config.num_experts == 1:
    return np.ones(0, np.float32)
  return choice_overlap(config.num_experts, config.experts_per_token, config.renormalized_experts,
                        config.std_of('router') * config.width**0.5)


def _factors(config):
  position_P = np.arange(config.length)
  match config.intervention:
    case 'amplify' | 'attenuate' | 'gain' | 'damp':
      return interventions.factors(config, position_P).astype(np.float32)
    case 'variance' | 'norm':
      # The mean over channels vanishes in the limit, so that both are the same here.
      return np.where(position_P == config.intervention_position, config.intervention_strength,
                      1.0).astype(np.float32)
    case 'none' | 'rmsnorm' | 'mask':
      return np.ones(0, np.float32)
    case unknown:
      raise InputError(f'the theory of random networks does not know intervention={unknown!r}',
                       'intervention')


def _score_variance(config):
  """Variance of attention scores: of q·k / sqrt(K), whose entries have the variance σ² d."""
  query_std, key_std = config.std_of('query'), config.std_of('key')
  variance = 1.0 if config.qk_norm else (query_std * key_std * config.width) ** 2
  variance *= config.head_size / (config.score_divisor or config.head_size)
  if config.positions != 'rope' or not config.rope_scaling:
    return variance
  turning = config.rotary_size / config.head_size
  return variance * (1 - turning + turning * config.rope_scaling.attention_factor**4)
