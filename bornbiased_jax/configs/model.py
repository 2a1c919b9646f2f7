"""A model's architecture as a frozen dataclass."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from bornbiased_jax.configs import checks
from bornbiased_jax.configs.checks import RopeScaling
from bornbiased_jax.errors import InputError

# GPT-2's std at initialization, and the smallest width at which it is used unchanged.
BASE_STD = 0.02
BASE_WIDTH = 768

# The default of a field that is computed from the others, so that it is a number in every network.
_COMPUTED: Any = None


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The architecture of a decoder-only, residual, causal transformer.

  The defaults describe GPT-2 with rotary positions, like in the paper.

  Args:
    num_layers: number of blocks, L.
    num_heads: number of query heads per block.
    width: number of channels of the residual stream, d.
    mlp_width: number of hidden units of the MLP.
    vocab_size: number of token ids, V. It is never padded to a rounder number,
      because an argmax could then choose a token that does not exist.
    length: the most positions that the model reads. Longer inputs are refused.
    num_kv_heads: number of key/value heads. Fewer than `num_heads` mean
      grouped-query attention; None means `num_heads`.
    head_size: number of channels of one head; None means width / num_heads.
    norm: 'layernorm' | 'rmsnorm'.
    norm_place: where each sublayer has a norm: 'before' it (pre-norm), 'after' it, before
      its output is added to the residual stream (OLMo 2), or at 'both' places (Gemma 2).
    norm_epsilon: added to the variance (LayerNorm) or the mean square (RMSNorm).
    activation: 'gelu_tanh' (GPT-2's) | 'gelu' (exact) | 'silu' | 'relu' | 'squared_relu'
      (Primer's) | 'tanh', or another function's name in configs.ACTIVATIONS.
    gated_mlp: the MLP computes down(activation(gate(x)) * up(x)) instead of
      down(activation(up(x))).
    num_experts: number of MLPs of this kind in each block, the experts; a router, which reads
      what they read, chooses `experts_per_token` of them for each position. 1: no router.
    experts_per_token: how many of them are chosen.
    renormalized_experts: the weights of those that are chosen sum to 1 (Mixtral). If not,
      they are their shares in the softmax over all experts.
    shared_mlp_width: number of hidden units of one more expert, which is always chosen and
      has a gate of its own (Qwen2-MoE); 0: there is none.
    positions: 'rope' (rotary) | 'learned' (embeddings that are added to the input) | 'alibi'
      (scores fall with the distance, in each head by another slope; Press et al. 2022) | 'none'.
    rope_theta: base of the rotary wavelengths: pair j of a head's channels turns
      once in 2 pi rope_theta^(2 j / rotary_size) positions.
    rotary_factor: the share of a head's channels that RoPE turns, the first ones.
    rope_scaling: how RoPE was changed for longer sequences; None: not at all.
    windows: for each layer, how many positions its queries see, their own and those right
      before it, or None for all. Empty: no layer has a window.
    window_rope_theta: base of the rotary wavelengths in layers with a window, where RoPE
      is not scaled either (Gemma 3). None: RoPE is the same in all layers.
    qkv_bias: biases on query, key and value.
    output_bias: bias on the attention output.
    mlp_bias: biases in the MLP.
    qk_norm: RMSNorm on the query and key of each head (Qwen3).
    joint_qk_norm: this RMSNorm is one of all heads together (OLMo 2).
    score_divisor: attention scores are divided by its square root; None means head_size.
    score_cap: bound c of attention scores s, which become c tanh(s / c) (Gemma 2); None:
      they have none.
    logit_cap: the same of logits.
    parallel_residual: the MLP reads the same residual stream as the attention,
      not what that attention has added to it (GPT-J, Pythia).
    scaled_embedding: token embeddings are multiplied by sqrt(width) where they enter the
      residual stream (Gemma). Continuous inputs are not.
    tied_head: the LM head is the embedding.
    sublayers: 'full' | 'attention_only' | 'mlp_only' (the ablation of Table 2).
    init_scheme: 'gpt2' divides the std of the two layers that write to the
      residual stream by sqrt(2 L) (appendix B.1); 'plain' does not, and 'wang'
      sets it to 2 / (L sqrt(d)), as GPT-NeoX does. 'centred' is 'gpt2' with
      biases that cancel the mean of the MLP's activation, so that the network
      is born without the contraction that it causes (initialization.py).
      'orthogonal' and 'truncated' have the stds of 'gpt2', in blocks of matrices with
      orthonormal rows or columns, or in all of normals cut at two stds. 'zero' is 'gpt2'
      whose two layers write nothing. 'deepnorm' multiplies the std of all linear layers in
      blocks but queries, keys and routers by (8 L)^(-1/4), as DeepNet does in decoders; its factor
      of the residual stream, which belongs to post-norm, has no place here. 'mup' is 'gpt2'
      with what muP says of initialization: linear_std goes as 1 / sqrt(width) at all widths, and an
      untied head, and routers, as 1 / width; `training` has its learning rates. It means heads of
      one size at all widths (or score_divisor as head_size²), and mlp_width in proportion to width.
    linear_std: std of linear layers at initialization. None means 0.02, and
      below width 768 it means 0.02 sqrt(768 / width), which keeps the scale of
      pre-activations the same at all small widths.
    embedding_std: std of token embeddings, and of learned positions, at
      initialization.
    dtype: the type in which the forward pass computes; parameters are float32.
    remat: what the backward pass computes again instead of storing it: 'none' |
      'dots' (all of a block but its products with weights) | 'full' (all of it).
    intervention: a change of the value aggregate before W_O (interventions.py).
      'none' | 'amplify' | 'attenuate' | 'rmsnorm' | 'sink_logit' | 'gain' | 'damp' act on all
      positions, 'mask' | 'variance' | 'norm' on one. Windows allow only 'rmsnorm', 'sink_logit'
      and those on one.
    intervention_position: that one position, counted from 0.
    intervention_strength: the factor of 'variance' and 'norm'.
    prefix_plus: each head adds elu(q) M to its weighted mean of values, with a matrix M of its
      own, as Prefix-Tuning+ does (`training`).

  Raises:
    InputError (a ValueError): a field is impossible; the message names it and says why.
  """

  num_layers: int
  num_heads: int
  width: int
  mlp_width: int
  vocab_size: int
  length: int = 1024
  num_kv_heads: int = _COMPUTED
  head_size: int = _COMPUTED
  norm: str = 'layernorm'
  norm_place: str = 'before'
  norm_epsilon: float = 1e-5
  activation: str = 'gelu_tanh'
  gated_mlp: bool = False
  num_experts: int = 1
  experts_per_token: int = 1
  renormalized_experts: bool = True
  shared_mlp_width: int = 0
  positions: str = 'rope'
  rope_theta: float = 10000.0
  rotary_factor: float = 1.0
  rope_scaling: RopeScaling | None = None
  windows: tuple[int | None, ...] = ()
  window_rope_theta: float | None = None
  qkv_bias: bool = True
  output_bias: bool = True
  mlp_bias: bool = True
  qk_norm: bool = False
  joint_qk_norm: bool = False
  score_divisor: float | None = None
  score_cap: float | None = None
  logit_cap: float | None = None
  parallel_residual: bool = False
  scaled_embedding: bool = False
  tied_head: bool = True
  sublayers: str = 'full'
  init_scheme: str = 'gpt2'
  linear_std: float = _COMPUTED
  embedding_std: float = BASE_STD
  dtype: str = 'float32'
  remat: str = 'none'
  intervention: str = 'none'
  intervention_position: int = 0
  intervention_strength: float = 2.0
  prefix_plus: bool = False

  def __post_init__(self):
    checks.check_counts(self)  # From which the defaults follow.
    self._fill_defaults()
    checks.check(self)

  def _fill_defaults(self):
    if self.head_size is None and self.width % self.num_heads:
      raise InputError(f'num_heads={self.num_heads} does not divide width={self.width}; '
                       'choose a divisor or set head_size')
    if isinstance(self.rope_scaling, Mapping):  # As a file has it.
      object.__setattr__(self, 'rope_scaling', RopeScaling(**self.rope_scaling))
    if isinstance(self.windows, list | tuple):  # Also of a list, as a file has it.
      limited = any(window is not None for window in self.windows)
      object.__setattr__(self, 'windows', tuple(self.windows) if limited else ())
    for name, default in self.computed().items():
      if getattr(self, name) is None:
        # A frozen dataclass refuses plain assignment, even in its own __post_init__.
        object.__setattr__(self, name, default)

  def computed(self) -> dict[str, Any]:
    """What the fields that follow from others are if they are not given; None if nothing follows.

    Example:
      >>> from bornbiased_jax import configs
      >>> configs.get('tiny_gpt2', num_kv_heads=2).computed()['num_kv_heads']
      4
    """
    width = self.width if self.init_scheme == 'mup' else min(self.width, BASE_WIDTH)
    return {'head_size': None if self.width % self.num_heads else self.width // self.num_heads,
            'num_kv_heads': self.num_heads,
            'linear_std': BASE_STD * math.sqrt(BASE_WIDTH / width)}

  def layer(self, i: int) -> 'ModelConfig':
    """The configuration of layer `i`, counted from 0, as a network of one layer.

    It has what differs by layer: the window, and RoPE. With the parameters of their layers,
    L such networks compute one after the other what the blocks of the whole network do.

    Example:
      >>> from bornbiased_jax import configs
      >>> config = configs.get('tiny_gpt2', windows=(8, None, 8, None), window_rope_theta=100.0)
      >>> [(config.layer(i).windows, config.layer(i).rope_theta) for i in range(2)]
      [((8,), 100.0), ((), 10000.0)]
    """
    window = self.windows[i] if self.windows else None
    own: dict[str, Any] = {}
    if window is not None and self.window_rope_theta is not None:
      own = dict(rope_theta=self.window_rope_theta, rope_scaling=None)
    return dataclasses.replace(
        self, num_layers=1, windows=(window,), window_rope_theta=None, **own)

  @property
  def rotary_size(self) -> int:
    """Number of channels of a head that RoPE turns."""
    return int(self.head_size * self.rotary_factor)

  @property
  def embedding_factor(self) -> float:
    """What token embeddings are multiplied by where they enter the residual stream."""
    return math.sqrt(self.width) if self.scaled_embedding else 1.0

  @property
  def residual_std(self) -> float:
    """Std at initialization of the two layers that write to the residual stream."""
    match self.init_scheme:
      case 'wang':
        return 2 / (self.num_layers * math.sqrt(self.width))
      case 'zero':
        return 0.0
      case 'plain' | 'deepnorm':
        return self.std_of('up')
      case _:
        return self.linear_std / math.sqrt(2 * self.num_layers)

  def std_of(self, layer: str) -> float:
    """Std at initialization of a linear layer or an embedding, by the name of its parameters."""
    if layer in ('embedding', 'position_embedding'):
      return self.embedding_std
    if layer in ('output', 'down'):
      return self.residual_std
    if layer in ('head', 'router', 'shared_gate') and self.init_scheme == 'mup':
      return self.linear_std * math.sqrt(BASE_WIDTH / self.width)
    if layer in ('value', 'gate', 'up') and self.init_scheme == 'deepnorm':
      return self.linear_std * (8 * self.num_layers) ** -0.25
    return self.linear_std


def from_dict(stored: Any, of_what: str) -> ModelConfig:
  """The configuration that `dataclasses.asdict` turned into `stored`."""
  try:
    return ModelConfig(**stored)
  except TypeError as error:
    raise InputError(f'{of_what} whose configuration this version does not know: '
                     f'{error}') from None
