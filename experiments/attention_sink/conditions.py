"""The networks in which experiments.attention_sink looks for sinks: what each changes of the first.

The first is the smallest that the task needs: one attention sublayer with one head, like in Guo et
al. (arXiv 2410.13835), with rotary positions, RMSNorm and a start token.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bornbiased_jax import configs
from bornbiased_jax.configs import ModelConfig

BASE = dict(num_layers=1, num_heads=1, num_kv_heads=1, width=64, mlp_width=256,
            sublayers='attention_only')
_TWO = dict(num_layers=2)
_FULL = dict(sublayers='full')
_GELU = _FULL | dict(gated_mlp=False, activation='gelu_tanh', mlp_bias=True)


class Condition(NamedTuple):
  """One kind of network, by its factor and value, and what it changes of the first one."""

  factor: str
  value: str
  config: Mapping[str, Any] = {}
  recipe: Mapping[str, Any] = {}
  start: bool = True


# Those at all positions, each before its control.
EVERYWHERE = ('amplify', 'gain', 'attenuate', 'damp', 'rmsnorm', 'sink_logit')
FACTORS = {
    'intervention': [Condition('intervention', name, dict(intervention=name))
                     for name in EVERYWHERE],
    'position': [Condition('position', name, dict(intervention=name))
                 for name in configs.AT_ONE_POSITION],
    # In a single layer attention comes before anything that an intervention makes loud.
    'two layers': [Condition('two layers', name, _TWO | dict(intervention=name))
                   for name in (*EVERYWHERE, *configs.AT_ONE_POSITION)],
    'start token': [Condition('start token', f'no{value}', config, start=False)
                    for value, config in (
                        ('', {}), (', depth 2', _TWO), (', depth 3', dict(num_layers=3)),
                        (', gated', _FULL), (', gated, depth 2', _FULL | _TWO),
                        (', gated, depth 3', _FULL | dict(num_layers=3)))],
    'depth': [Condition('depth', str(L), dict(num_layers=L)) for L in (2, 3, 4)],
    'heads': [Condition('heads', str(H), dict(num_heads=H, num_kv_heads=H, head_size=64 // H))
              for H in (2, 4)],
    'width': [Condition('width', str(d), dict(width=d)) for d in (4, 8, 16, 32)],
    'MLP': [Condition('MLP', 'gated', _FULL), Condition('MLP', 'GELU', _GELU),
            Condition('MLP', 'GELU, centred', _GELU | dict(init_scheme='centred')),
            Condition('MLP', 'gated, depth 2', _FULL | _TWO)],
    'norm': [Condition('norm', 'LayerNorm', dict(norm='layernorm')),
             Condition('norm', 'QK-norm', dict(qk_norm=True))],
    'positions': [Condition('positions', 'learned', dict(positions='learned'))],
    'weight decay': [Condition('weight decay', '0.1', recipe=dict(weight_decay=0.1))],
    'learning rate': [Condition('learning rate', f'{rate:g}', recipe=dict(
        peak_lr=rate, min_lr=rate / 10)) for rate in (0.001, 0.003, 0.03)],
}
NONE = Condition('intervention', 'none')


def of(factors: list[str]) -> list[Condition]:
  """The first kind of network, then the kinds of some factors."""
  return [NONE, *(condition for factor in factors for condition in FACTORS[factor])]


def config_of(condition: Condition, vocab_size: int, settings) -> ModelConfig:
  """The architecture of a condition. It reads --length tokens, to which interventions refer."""
  return configs.get('tiny_llama2', **BASE | dict(
      vocab_size=vocab_size, length=settings.length, intervention_position=settings.position,
      intervention_strength=settings.strength)
      | condition.config)
