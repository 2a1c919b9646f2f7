"""What the fields of a configuration may be, each and together."""

from collections.abc import Callable
import dataclasses
import difflib
import reprlib
from typing import Any

from bornbiased_jax.errors import InputError, check_count, check_positive

NORMS = ('layernorm', 'rmsnorm')
NORM_PLACES = ('before', 'after', 'both')
POSITIONS = ('rope', 'learned', 'alibi', 'none')
SUBLAYERS = ('full', 'attention_only', 'mlp_only')
INIT_SCHEMES = (
    'gpt2', 'plain', 'centred', 'wang', 'orthogonal', 'truncated', 'zero', 'deepnorm', 'mup')
DTYPES = ('float32', 'bfloat16')
REMATS = ('none', 'dots', 'full')
# The interventions that change only one position.
AT_ONE_POSITION = ('mask', 'variance', 'norm')
# Those whose factors follow from the number of positions before.
OF_ALL_BEFORE = ('amplify', 'attenuate', 'gain', 'damp')
# Those with parameters, which only training finds.
LEARNED = 'rmsnorm', 'sink_logit'
INTERVENTIONS = ('none', 'amplify', 'attenuate', *LEARNED, 'gain', 'damp', *AT_ONE_POSITION)
ROPE_SCALINGS = ('linear', 'llama3', 'yarn')
# The default of a field which has no meaning without others.
_UNUSED: Any = None


class _Activations(dict[str, Callable]):
  """Functions by name; none can be replaced, because compiled programs go by the name."""

  def __setitem__(self, name, function):
    if not isinstance(name, str) or not name.isidentifier():
      raise InputError(f'activation {name!r} must be a word, such as squared_relu')
    if self.get(name, function) is not function:
      raise InputError(f'activation {name!r} is another function already; choose another name')
    _check_traced(name, function)
    super().__setitem__(name, function)


def _check_traced(name, function):
  """Raises InputError unless JAX computes a function, and of an array one of the same shape."""
  import jax
  x = jax.ShapeDtypeStruct((2, 3), 'float32')
  try:
    found = jax.eval_shape(function, x).shape
  except (TypeError, ValueError, AttributeError) as error:
    found = type(error).__name__
  if found != x.shape:
    raise InputError(f'activation {name!r} must be an elementwise function of JAX arrays, such as '
                     f'jax.nn.relu, and none of numpy or torch: of {x.shape} it makes {found}')


def _of_jax(name, **arguments):
  """An activation for which JAX is imported when one is computed, not before."""
  def activation(x):
    import jax
    return getattr(jax.nn, name)(x, **arguments)

  return activation


def _squared_relu(x):
  """ReLU squared, of Primer (So et al. 2021) and Nemotron."""
  import jax
  return jax.numpy.square(jax.nn.relu(x))


# Elementwise functions. One's own is added by ACTIVATIONS['mine'] = function.
ACTIVATIONS = _Activations(
    gelu_tanh=_of_jax('gelu', approximate=True), gelu=_of_jax('gelu', approximate=False),
    silu=_of_jax('silu'), relu=_of_jax('relu'), squared_relu=_squared_relu, tanh=_of_jax('tanh'))

# What `transformers` calls them.
THEIR_ACTIVATIONS = dict(
    gelu_new='gelu_tanh', gelu_pytorch_tanh='gelu_tanh', gelu_fast='gelu_tanh', gelu='gelu',
    silu='silu', swish='silu', relu='relu', tanh='tanh', relu2='squared_relu')


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How the frequencies of RoPE were lowered, so that a model reads longer sequences.

  A channel pair's frequency is divided by `factor`, or stays, or is between both. It depends on
  how often the pair turns within the length that the model read before.

  Args:
    kind: 'linear' divides all frequencies. 'llama3' (Llama 3.1) interpolates linearly in the
      turns, 'yarn' (Peng et al. 2023, arXiv 2309.00071) in the number of the pair.
    factor: what the lowest frequencies are divided by.
    original_length: the positions that the model read before; not of 'linear'.
    slow: pairs that turn less often in them get the whole factor; not of 'linear'.
    fast: pairs that turn more often keep their frequency; not of 'linear'.
    attention_factor: what queries and keys are multiplied by, in the channels that turn; of
      only 'yarn'.
  """

  kind: str
  factor: float
  original_length: int = _UNUSED
  slow: float = _UNUSED
  fast: float = _UNUSED
  attention_factor: float = 1.0

  def __post_init__(self):
    _check_choice(self, 'kind', ROPE_SCALINGS)
    is_linear = self.kind == 'linear'
    ramp = ('original_length', 'slow', 'fast')
    if not is_linear:
      check_count('original_length', self.original_length)
    for name in ('factor', 'attention_factor', *(() if is_linear else ramp)):
      check_positive(name, getattr(self, name))
    idle = {name: _UNUSED for name in ramp if is_linear}
    idle |= {} if self.kind == 'yarn' else {'attention_factor': 1}
    _refuse(self, (
        ('factor', self.factor < 1, 'must be at least 1'),
        ('slow', not is_linear and self.slow >= self.fast, f'must be below fast={self.fast}'),
        *((name, getattr(self, name) != default, f'has no meaning with kind={self.kind!r}')
          for name, default in idle.items())))


def _refuse(config, cases):
  """Raises InputError for the first field that is wrong, of (field, is_wrong, why)."""
  for name, is_wrong, why in cases:
    if is_wrong:
      raise InputError(f'{name}={reprlib.repr(getattr(config, name))} {why}', name)


def _check_choice(config, name, choices, advice=''):
  value = getattr(config, name)
  if not isinstance(value, str) or value not in choices:
    meant = ([THEIR_ACTIVATIONS[value]] if value in [*THEIR_ACTIVATIONS] else
             difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.5))
    raise InputError(f'{name}={value!r} is not one of {", ".join(choices)}'
                     f'{f" (did you mean {meant[0]}?)" if meant else ""}{advice}', name)


def check_counts(config: Any) -> None:
  """Refuses sizes that are no positive integers."""
  for name in ('num_layers', 'num_heads', 'width', 'mlp_width', 'vocab_size', 'length',
               'num_experts', 'experts_per_token'):
    check_count(name, getattr(config, name))


def check(config: Any) -> None:
  """Refuses a `ModelConfig` that is impossible: an InputError names the field and says why."""
  _check_types(config)
  _refuse(config, [*_wrong_shapes(config), *_wrong_windows(config), *_wrong_together(config)])


def _check_types(config):
  """Each field by itself."""
  for name in ('head_size', 'num_kv_heads', 'shared_mlp_width'):
    if (name, getattr(config, name)) != ('shared_mlp_width', 0):
      check_count(name, getattr(config, name))
  own = f"; one's own is added by configs.ACTIVATIONS[{config.activation!r}] = function"
  for name, choices in (
      ('norm', NORMS), ('norm_place', NORM_PLACES), ('activation', ACTIVATIONS),
      ('positions', POSITIONS), ('sublayers', SUBLAYERS), ('init_scheme', INIT_SCHEMES),
      ('dtype', DTYPES), ('remat', REMATS), ('intervention', INTERVENTIONS)):
    _check_choice(config, name, choices, own if name == 'activation' else '')
  for name in ('rotary_factor', 'norm_epsilon', 'linear_std', 'embedding_std', 'rope_theta',
               'intervention_strength'):
    check_positive(name, getattr(config, name))
  for name in ('score_divisor', 'score_cap', 'logit_cap', 'window_rope_theta'):
    if getattr(config, name) is not None:
      check_positive(name, getattr(config, name))
  is_flag = {field.name: field.type is bool for field in dataclasses.fields(config)}
  _refuse(config, [
      *((name, is_flag[name] and type(value) is not bool, 'must be True or False')
        for name, value in vars(config).items()),
      ('rope_scaling', not isinstance(config.rope_scaling, RopeScaling | None),
       'must be a RopeScaling or None'),
      ('windows', not isinstance(config.windows, tuple)
       or len(config.windows) not in (0, config.num_layers),
       f'must have one entry for each of the {config.num_layers} layers, or none at all')])
  for window in config.windows:
    if window is not None:
      check_count('windows', window)


def _wrong_shapes(config):
  share = f'times rotary_factor={config.rotary_factor!r} ' if config.rotary_factor != 1 else ''
  position = config.intervention_position
  is_pairs = config.rotary_size > 0 and config.rotary_size % 2 == 0
  return [
      ('num_kv_heads', config.num_heads % config.num_kv_heads,
       f'does not divide num_heads={config.num_heads}'),
      ('experts_per_token', config.experts_per_token > config.num_experts,
       f'exceeds num_experts={config.num_experts}'),
      ('shared_mlp_width', config.shared_mlp_width and config.num_experts == 1,
       'has no meaning with num_experts=1'),
      ('rotary_factor', config.rotary_factor > 1, 'exceeds 1'),
      ('head_size', config.positions == 'rope' and not is_pairs,
       f"{share}is odd; RoPE rotates pairs of channels (use an even head_size, or "
       "positions='learned')"),
      ('intervention_position', type(position) is not int or not 0 <= position < config.length,
       f'is not a position from 0 to {config.length - 1}')]


def _wrong_windows(config):
  windows = reprlib.repr(config.windows)
  has_local_base = config.window_rope_theta is not None
  return [
      ('intervention', config.windows and config.intervention in OF_ALL_BEFORE,
       f'is for attention to all positions before, and has no meaning with windows={windows}'),
      ('window_rope_theta', has_local_base and config.window_rope_theta < 1, 'must be at least 1'),
      ('window_rope_theta', has_local_base and not (config.windows and config.positions == 'rope'),
       "has no meaning without windows and positions='rope'")]


def _wrong_together(config):
  kind = config.rope_scaling.kind if config.rope_scaling else None
  return [
      ('rope_theta', config.rope_theta < 1, 'must be at least 1'),
      ('rope_theta', kind == 'yarn' and config.rope_theta <= 1, "must be above 1 with kind='yarn'"),
      ('score_cap', config.positions == 'alibi' and config.score_cap is not None,
       "has no meaning with positions='alibi'"),
      ('init_scheme', config.init_scheme == 'centred' and (config.gated_mlp or not config.mlp_bias),
       'acts on the biases of an MLP without gates (gated_mlp=False, mlp_bias=True); gated units '
       'have mean 0 already'),
      ('joint_qk_norm', config.joint_qk_norm and not config.qk_norm, 'needs qk_norm=True'),
      ('prefix_plus', config.prefix_plus and config.sublayers == 'mlp_only',
       "has no meaning with sublayers='mlp_only'")]
