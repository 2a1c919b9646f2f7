"""config.json: the configuration that it describes, and the family that describes a configuration.

The rows of `families` say what a family calls our fields.
"""

from pathlib import Path
import re

from bornbiased_jax.configs import BASE_STD, ModelConfig
from bornbiased_jax.configs.checks import THEIR_ACTIVATIONS
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import (
  COUNT,
  COUNT_OR_NULL,
  FLAG,
  NUMBER,
  NUMBER_OR_NULL,
  entry,
  naming,
  of_type,
  only,
)
from bornbiased_jax.storage.huggingface.families import FAMILIES, Family
from bornbiased_jax.storage.huggingface.positions import (
  read_rope,
  read_windows,
  rope_to_stored,
  windows_to_stored,
)
from bornbiased_jax.storage.huggingface.quantized import read_quantization

# Entries of config.json of any family, with the only value that our Transformer can compute.
_ONLY = dict(scale_attn_weights=(True,), scale_attn_by_inverse_layer_idx=(False,),
             add_cross_attention=(False,), is_causal=(True,),
             # Other files of weights than the usual ones, and layers of other settings.
             transformers_weights=(None,), per_layer_config=(None,))
_STORED_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(THEIR_ACTIVATIONS.items())}
# For each of our fields what its value in config.json must be.
_KINDS = {
    **dict.fromkeys(('vocab_size', 'width', 'length', 'num_heads', 'experts_per_token',
                     'shared_mlp_width'), COUNT),
    # A stranger's number takes no memory before the tensors are looked for.
    'num_layers': ('a whole number from 1 to 10000',
                   lambda value: COUNT[1](value) and value <= 10_000),
    'num_experts': ('a whole number from 2 to 2147483647',
                    lambda value: COUNT[1](value) and value > 1),
    **dict.fromkeys(('mlp_width', 'num_kv_heads', 'head_size'), COUNT_OR_NULL),
    **dict.fromkeys(('score_cap', 'logit_cap'), NUMBER_OR_NULL),
    'norm_epsilon': NUMBER,
    # A class of transformers has it as a whole number.
    'score_divisor': COUNT,
    **dict.fromkeys(('qkv_bias', 'output_bias', 'mlp_bias', 'tied_head', 'parallel_residual',
                     'renormalized_experts'), FLAG),
    'activation': (f'one of {", ".join(THEIR_ACTIVATIONS)}',
                   lambda value: type(value) is str and value in THEIR_ACTIVATIONS),
}
_STD = ('a number from 0 to 1e30 or null',
        lambda value: value in (None, 0) or NUMBER_OR_NULL[1](value))
# Fields of ModelConfig that have no place in config.json.
_UNSAVED = ('dtype', 'remat')
# The entry in which `save` says how weights are drawn, if `transformers` would draw them otherwise.
_OWN = 'bornbiased_jax'


def parse_config(stored: dict, file: Path) -> tuple[ModelConfig, Family, dict]:
  """What config.json holds: the configuration, its family, and how weights are quantized, or {}."""
  with naming(file):
    only('model_type', stored.get('model_type'), *FAMILIES)
    family = FAMILIES[stored['model_type']]
    if not has_head(stored, family):
      only('architectures', stored['architectures'], [family.architecture])
    return from_stored(stored, family), family, read_quantization(stored)


def has_head(stored: dict, family: Family) -> bool:
  """Whether what config.json calls its class has the head of a language model.

  AutoModel saves one without a head, which is the embedding if they are tied.
  """
  named = str(stored.get('architectures') or [family.architecture]).lower()
  is_tied = (family.defaults | stored).get('tie_word_embeddings') is True
  bare = re.sub('LMHeadModel|ForCausalLM', 'Model', family.architecture)
  return named in (str([name]).lower() for name in (family.architecture, *[bare] * is_tied))


def from_stored(stored: dict, family: Family) -> ModelConfig:
  """The configuration that the entries of config.json describe; raises InputError if none."""
  stored = {name: right for name, (right,) in _ONLY.items()} | family.defaults | stored
  stored |= {name: stored[first] for first, name in family.aliases.items() if first in stored}
  values = {ours: entry(stored, name, *(COUNT if ours in family.never_null else _KINDS[ours]))
            for ours, name in family.fields.items()}
  values['activation'] = THEIR_ACTIVATIONS[values['activation']]
  # JSON may have it as a whole number, which need not fit in an int of JAX.
  values['norm_epsilon'] = float(values['norm_epsilon'])
  values['mlp_width'] = values['mlp_width'] or 4 * values['width']
  for name, choices in (_ONLY | family.only).items():
    only(name, stored[name], *choices)
  if values.get('score_divisor') == values.get('head_size'):
    values.pop('score_divisor', None)
  values['windows'] = read_windows(stored, family.windows, values['num_layers'])
  if family.whole_heads and values['width'] % values['num_heads']:
    raise InputError(f'num_attention_heads={values["num_heads"]} does not divide '
                     f'hidden_size={values["width"]}')
  if family.constants['positions'] == 'rope':
    values |= read_rope(stored, family.rope, values['windows'])
    if 'head_size' not in family.fields and stored.get('head_dim') is not None:
      only('head_dim', stored['head_dim'], values['width'] // values['num_heads'])
  return ModelConfig(**values, **family.constants, **_initialization(stored, family))


def _initialization(stored, family):
  """The fields that say how `transformers` draws weights, unless `save` wrote another way."""
  # It takes null and 0 for the default too.
  std = entry({'initializer_range': None} | stored, 'initializer_range', *_STD) or BASE_STD
  drawn = dict(init_scheme=family.init_scheme, linear_std=float(std), embedding_std=float(std))
  own = of_type(stored, _OWN, dict)
  return drawn | {name: own[name] for name in drawn if name in own}


def to_stored(config: ModelConfig, family: Family) -> dict:
  """The entries of config.json that describe `config`, as far as the family can."""
  stored = {theirs: getattr(config, ours, None) for ours, theirs in family.fields.items()}
  # Others keep their name, which no family has.
  stored[family.fields['activation']] = _STORED_ACTIVATIONS.get(config.activation,
                                                                config.activation)
  if 'score_divisor' in family.fields:
    divisor = config.head_size if config.score_divisor is None else config.score_divisor
    stored[family.fields['score_divisor']] = int(divisor) if divisor == int(divisor) else divisor
  if family.constants['positions'] == 'rope':
    stored |= rope_to_stored(config, family.rope)
  stored['initializer_range'] = min(config.linear_std, 1.0)  # Classes of transformers take no more.
  by_family = _initialization(stored, family)
  if own := {name: getattr(config, name) for name, value in by_family.items()
             if getattr(config, name) != value}:
    stored[_OWN] = own
  return stored | windows_to_stored(config, family.windows)


def choose_family(config: ModelConfig) -> tuple[str, Family]:
  """The first family whose config.json describes all of `config`, so that it is read the same."""
  misfits = {}
  ignored = _UNSAVED + ('rope_theta', 'rotary_factor', 'rope_scaling') * (
      config.positions == 'learned')
  ignored += ('intervention_position', 'intervention_strength') * (config.intervention == 'none')
  ignored += ('experts_per_token', 'renormalized_experts') * (config.num_experts == 1)
  for name, family in FAMILIES.items():
    try:
      back = from_stored(to_stored(config, family), family)
      misfits[name] = [f'{field}={value!r}'
                       for field, value in vars(config).items()
                       if field not in ignored and value != getattr(back, field)]
    except InputError as error:
      misfits[name] = [str(error)]
    if not misfits[name]:
      return name, family
  unlike = lambda family: sum(
      [getattr(config, field) != value for field, value in family.constants.items()]
      + [('num_experts' in family.fields) != (config.num_experts > 1)])
  nearest = min(misfits, key=lambda name: (unlike(FAMILIES[name]), len(misfits[name])))
  raise InputError(f'transformers has no such model; {nearest} comes near, but for '
                   f'{", ".join(misfits[nearest])}')
