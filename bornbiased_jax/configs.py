"""Model configurations: one frozen dataclass, and the presets of the paper by name."""

import dataclasses
import math

from bornbiased_jax.errors import InputError

NORMS = ('layernorm', 'rmsnorm')
# Each with its name in jax.nn, and the arguments it takes there.
ACTIVATIONS = {
    'gelu_tanh': ('gelu', {'approximate': True}),
    'gelu': ('gelu', {'approximate': False}),
    'silu': ('silu', {}),
    'relu': ('relu', {}),
    'tanh': ('tanh', {}),
}
POSITIONS = ('rope', 'learned')
SUBLAYERS = ('full', 'attention_only', 'mlp_only')
INIT_SCHEMES = ('gpt2', 'plain')
DTYPES = ('float32', 'bfloat16')
REMATS = ('none', 'dots', 'full')
AT_ONE_POSITION = ('mask', 'variance', 'norm')
INTERVENTIONS = ('none', 'amplify', 'attenuate', 'rmsnorm', 'gain', *AT_ONE_POSITION)

BASE_STD = 0.02
BASE_WIDTH = 768


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """A decoder-only, pre-norm, residual, causal transformer.

  Args:
    num_layers: blocks, L.
    num_heads: query heads a block.
    width: channels of the residual stream, d.
    mlp_width: hidden units of the MLP.
    vocab_size: token ids, V. Never padded: padding would enter an argmax.
    length: longest sequence in positions. Longer inputs are refused.
    num_kv_heads: key/value heads (grouped-query attention); None: num_heads.
    head_size: channels of one head; None: width / num_heads.
    norm: 'layernorm' | 'rmsnorm'.
    norm_epsilon: added to the variance (the mean square) inside the norm.
    activation: 'gelu_tanh' (GPT-2's) | 'gelu' (exact) | 'silu' | 'relu' | 'tanh'.
    gated_mlp: down(activation(gate(x)) * up(x)) instead of down(activation(up(x))).
    positions: 'rope' | 'learned'.
    rope_theta: base of the rotary wavelengths, in positions.
    qkv_bias: biases on query, key and value.
    output_bias: bias on the attention output.
    mlp_bias: biases in the MLP.
    qk_norm: RMSNorm on each head's query and key (Qwen3).
    tied_head: the LM head is the embedding.
    sublayers: 'full' | 'attention_only' | 'mlp_only' (the ablation of Table 2).
    init_scheme: 'gpt2' divides the std of the two layers that write to the
      residual stream by sqrt(2 L) (appendix B.1); 'plain' does not.
    linear_std: std of every linear layer at init; None: 0.02, and below width
      768 0.02 sqrt(768 / width), which keeps a pre-activation's scale.
    embedding_std: std of token (and learned position) embeddings at init.
    dtype: what the forward pass computes in; parameters are float32.
    remat: what the backward pass recomputes of a block instead of storing it:
      'none' | 'dots' (all but products with weights) | 'full'.
    intervention: what is done to the value aggregate before W_O (interventions.py):
      'none' | 'amplify' | 'attenuate' | 'rmsnorm' | 'gain' at all positions,
      'mask' | 'variance' | 'norm' at one.
    intervention_position: that one, from 0.
    intervention_strength: factor of 'variance' and 'norm'.

  Raises:
    InputError (a ValueError): names the field that is impossible, and why.
  """

  num_layers: int
  num_heads: int
  width: int
  mlp_width: int
  vocab_size: int
  length: int = 1024
  num_kv_heads: int | None = None
  head_size: int | None = None
  norm: str = 'layernorm'
  norm_epsilon: float = 1e-5
  activation: str = 'gelu_tanh'
  gated_mlp: bool = False
  positions: str = 'rope'
  rope_theta: float = 10000.0
  qkv_bias: bool = True
  output_bias: bool = True
  mlp_bias: bool = True
  qk_norm: bool = False
  tied_head: bool = True
  sublayers: str = 'full'
  init_scheme: str = 'gpt2'
  linear_std: float | None = None
  embedding_std: float = BASE_STD
  dtype: str = 'float32'
  remat: str = 'none'
  intervention: str = 'none'
  intervention_position: int = 0
  intervention_strength: float = 2.0

  def __post_init__(self):
    for name in ('num_layers', 'num_heads', 'width', 'mlp_width', 'vocab_size', 'length'):
      check_count(name, getattr(self, name))
    self._fill_defaults()
    self._check_shapes()
    for name, choices in (('norm', NORMS), ('activation', ACTIVATIONS), ('positions', POSITIONS),
                          ('sublayers', SUBLAYERS), ('init_scheme', INIT_SCHEMES), ('dtype', DTYPES),
                          ('remat', REMATS), ('intervention', INTERVENTIONS)):
      if getattr(self, name) not in choices:
        raise InputError(f'{name}={getattr(self, name)!r} is not one of {", ".join(choices)}')
    for name in ('norm_epsilon', 'rope_theta', 'linear_std', 'embedding_std', 'intervention_strength'):
      value = getattr(self, name)
      if type(value) not in (int, float) or not 0 < value < math.inf:
        raise InputError(f'{name}={value!r} must be a positive number')
    for field in dataclasses.fields(self):
      if field.type is bool and type(getattr(self, field.name)) is not bool:
        raise InputError(f'{field.name}={getattr(self, field.name)!r} must be True or False')

  def _fill_defaults(self):
    if self.head_size is None and self.width % self.num_heads:
      raise InputError(f'num_heads={self.num_heads} does not divide width={self.width}; '
                       'choose a divisor or set head_size')
    self._fill('head_size', self.width // self.num_heads)
    self._fill('num_kv_heads', self.num_heads)
    self._fill('linear_std', BASE_STD * math.sqrt(BASE_WIDTH / min(self.width, BASE_WIDTH)))

  def _check_shapes(self):
    check_count('head_size', self.head_size)
    check_count('num_kv_heads', self.num_kv_heads)
    if self.num_heads % self.num_kv_heads:
      raise InputError(f'num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}')
    if self.positions == 'rope' and self.head_size % 2:
      raise InputError(f'head_size={self.head_size} is odd; RoPE rotates pairs of channels '
                       "(use an even head_size, or positions='learned')")
    if type(self.intervention_position) is not int or not 0 <= self.intervention_position < self.length:
      raise InputError(f'intervention_position={self.intervention_position!r} is not a position from 0 to '
                       f'{self.length - 1}')

  def _fill(self, name, default):
    if getattr(self, name) is None:
      object.__setattr__(self, name, default)

  @property
  def residual_std(self) -> float:
    """Std at init of the two layers that write to the residual stream."""
    return self.linear_std / math.sqrt(2 * self.num_layers) if self.init_scheme == 'gpt2' else self.linear_std


def check_count(name: str, value: int) -> None:
  """Raises InputError unless it is a whole number of at least 1."""
  if not isinstance(value, int) or isinstance(value, bool) or value < 1:
    raise InputError(f'{name}={value!r} must be a whole number of at least 1')


_GPT2 = {}
_LLAMA2 = dict(norm='rmsnorm', activation='silu', gated_mlp=True, qkv_bias=False,
               output_bias=False, mlp_bias=False, tied_head=False, length=2048)
_NANO = dict(num_layers=12, num_heads=12, width=768)
_TINY = dict(num_layers=4, num_heads=4, width=128, vocab_size=2048)

PRESETS = {
    'nano_gpt2': dict(_GPT2, **_NANO, mlp_width=3072, vocab_size=50257),
    'nano_llama2': dict(_LLAMA2, **_NANO, mlp_width=2048, vocab_size=32000),
    'nano_qwen2': dict(_LLAMA2, **_NANO, mlp_width=3072, vocab_size=151936,
                       norm_epsilon=1e-6) | dict(qkv_bias=True),
    'gpt2_1b2': dict(_GPT2, num_layers=24, num_heads=32, width=2048, mlp_width=8192, vocab_size=50257),
    'llama2_7b': dict(_LLAMA2, num_layers=32, num_heads=32, width=4096, mlp_width=11008,
                      vocab_size=32000) | dict(length=4096),
    'tiny_gpt2': dict(_GPT2, **_TINY, mlp_width=512),
    'tiny_llama2': dict(_LLAMA2, **_TINY, mlp_width=344),
    'tiny_qwen2': dict(_LLAMA2, **_TINY, mlp_width=344, norm_epsilon=1e-6) | dict(qkv_bias=True),
}


def get(name: str, **overrides) -> ModelConfig:
  """The preset `name` of the paper's table of models with fields overridden.

  Raises:
    InputError: no such preset, no such field, or an impossible combination.

  Example:
    configs.get('nano_gpt2', sublayers='mlp_only')
  """
  if not isinstance(name, str) or name not in PRESETS:
    raise InputError(f'no preset {name!r}; the presets are {", ".join(PRESETS)}')
  fields = [field.name for field in dataclasses.fields(ModelConfig)]
  for field in overrides:
    if field not in fields:
      raise InputError(f'no field {field!r} in ModelConfig; the fields are {", ".join(fields)}')
  return ModelConfig(**(PRESETS[name] | overrides))


def from_dict(fields: dict, of_what: str) -> ModelConfig:
  """The configuration of which `dataclasses.asdict` made `fields`, from a file `of_what`.

  Raises:
    InputError: no dict, or a field that is unknown or impossible.
  """
  try:
    return ModelConfig(**fields)
  except TypeError as error:
    raise InputError(f'{of_what} whose configuration is not one of this version: {error}') from None
