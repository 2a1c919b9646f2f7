"""What the fields of a configuration may be, alone and together."""

import dataclasses
import difflib
import reprlib
from typing import Any

from bornbiased_jax.configs.activations import ACTIVATIONS
from bornbiased_jax.errors import InputError, check_count, check_positive
from bornbiased_jax.rope_scaling import RopeScaling

NORMS = ('layernorm', 'rmsnorm')
NORM_PLACES = ('before', 'after', 'both')
POSITIONS = ('rope', 'learned', 'alibi', 'none')
SUBLAYERS = ('full', 'attention_only', 'mlp_only')
INIT_SCHEMES = (
    'gpt2', 'plain', 'centred', 'wang', 'orthogonal', 'truncated', 'zero', 'deepnorm', 'mup')
DTYPES = ('float32', 'bfloat16')
REMATS = ('none', 'dots', 'full')
# The interventions that change one position alone.
AT_ONE_POSITION = ('mask', 'variance', 'norm')
# Those whose factors follow from the number of positions before.
OF_ALL_BEFORE = ('amplify', 'attenuate', 'gain', 'damp')
# Those with parameters, which only training finds.
LEARNED = 'rmsnorm', 'sink_logit'
INTERVENTIONS = ('none', 'amplify', 'attenuate', *LEARNED, 'gain', 'damp', *AT_ONE_POSITION)


def check_counts(config: Any) -> None:
  """Refuses sizes that are no positive integers."""
  for name in ('num_layers', 'num_heads', 'width', 'mlp_width', 'vocab_size', 'length',
               'num_experts', 'experts_per_token'):
    check_count(name, getattr(config, name))


def check(config: Any) -> None:
  """Refuses a `ModelConfig` that is impossible: an InputError names the field and says why."""
  _check_shapes(config)
  _check_windows(config)
  _check_choices(config)
  _check_numbers(config)
  _check_flags(config)


def _check_shapes(config):
  check_count('head_size', config.head_size)
  check_count('num_kv_heads', config.num_kv_heads)
  if config.num_heads % config.num_kv_heads:
    raise InputError(f'num_kv_heads={config.num_kv_heads} does not divide '
                     f'num_heads={config.num_heads}')
  _check_experts(config)
  check_positive('rotary_factor', config.rotary_factor)
  if config.rotary_factor > 1:
    raise InputError(f'rotary_factor={config.rotary_factor!r} exceeds 1')
  if config.positions == 'rope' and (config.rotary_size % 2 or not config.rotary_size):
    share = f' times rotary_factor={config.rotary_factor!r}' if config.rotary_factor != 1 else ''
    raise InputError(f'head_size={config.head_size}{share} is odd; RoPE rotates pairs of channels '
                     "(use an even head_size, or positions='learned')")
  position = config.intervention_position
  if type(position) is not int or not 0 <= position < config.length:
    raise InputError(f'intervention_position={position!r} is not a position from 0 to '
                     f'{config.length - 1}', 'intervention_position')


def _check_experts(config):
  if config.experts_per_token > config.num_experts:
    raise InputError(f'experts_per_token={config.experts_per_token} exceeds '
                     f'num_experts={config.num_experts}', 'experts_per_token')
  if config.shared_mlp_width != 0:
    check_count('shared_mlp_width', config.shared_mlp_width)
    if config.num_experts == 1:
      raise InputError(f'shared_mlp_width={config.shared_mlp_width} has no meaning with '
                       'num_experts=1', 'shared_mlp_width')


def _check_windows(config):
  if not isinstance(config.windows, tuple) or len(config.windows) not in (0, config.num_layers):
    raise InputError(f'windows={reprlib.repr(config.windows)} must have one entry for each of the '
                     f'{config.num_layers} layers, or none at all')
  for window in config.windows:
    if window is not None:
      check_count('windows', window)
  if config.windows and config.intervention in OF_ALL_BEFORE:
    raise InputError(f'intervention={config.intervention!r} is for attention to all positions '
                     f'before, and has no meaning with windows={reprlib.repr(config.windows)}',
                     'intervention')
  if config.positions == 'alibi' and config.score_cap is not None:
    raise InputError(f"score_cap={config.score_cap!r} has no meaning with positions='alibi'")
  if config.window_rope_theta is not None:
    _check_base(config, 'window_rope_theta')
    if not config.windows or config.positions != 'rope':
      raise InputError(f'window_rope_theta={config.window_rope_theta!r} has no meaning without '
                       "windows and positions='rope'")


def _check_choices(config):
  for name, choices in (
      ('norm', NORMS), ('norm_place', NORM_PLACES), ('activation', ACTIVATIONS),
      ('positions', POSITIONS), ('sublayers', SUBLAYERS), ('init_scheme', INIT_SCHEMES),
      ('dtype', DTYPES), ('remat', REMATS), ('intervention', INTERVENTIONS)):
    value = getattr(config, name)
    if not isinstance(value, str) or value not in choices:
      own = f"; one's own is added by configs.ACTIVATIONS[{value!r}] = function"
      meant = difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.5)
      raise InputError(f'{name}={value!r} is not one of {", ".join(choices)}'
                       f'{f" (did you mean {meant[0]}?)" if meant else ""}'
                       f'{own if name == "activation" else ""}', name)
  if config.init_scheme == 'centred' and (config.gated_mlp or not config.mlp_bias):
    raise InputError("init_scheme='centred' acts on the biases of an MLP without gates "
                     '(gated_mlp=False, mlp_bias=True); gated units have mean 0 already',
                     'init_scheme')


def _check_numbers(config):
  for name in ('norm_epsilon', 'linear_std', 'embedding_std', 'intervention_strength'):
    check_positive(name, getattr(config, name))
  for name in ('score_divisor', 'score_cap', 'logit_cap'):
    if getattr(config, name) is not None:
      check_positive(name, getattr(config, name))
  _check_base(config, 'rope_theta')
  if not isinstance(config.rope_scaling, RopeScaling | None):
    raise InputError(f'rope_scaling={config.rope_scaling!r} must be a RopeScaling or None')
  if config.rope_scaling and config.rope_scaling.kind == 'yarn' and config.rope_theta <= 1:
    raise InputError(f"rope_theta={config.rope_theta!r} must be above 1 with kind='yarn'")


def _check_base(config, name):
  check_positive(name, getattr(config, name))
  if getattr(config, name) < 1:
    raise InputError(f'{name}={getattr(config, name)!r} must be at least 1')


def _check_flags(config):
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if field.type is bool and type(value) is not bool:
      raise InputError(f'{field.name}={value!r} must be True or False')
  if config.joint_qk_norm and not config.qk_norm:
    raise InputError('joint_qk_norm=True needs qk_norm=True')
  if config.prefix_plus and config.sublayers == 'mlp_only':
    raise InputError("prefix_plus=True has no meaning with sublayers='mlp_only'", 'prefix_plus')
