"""Is a model initialized as its configuration says? Stds, compared with theory.

    python -m experiments.initialization my_llama/checkpoint-0
    python -m experiments.initialization config.json:42 --length=32

The model is a step-0 checkpoint or a random model, given as to experiments.sample. config.json
says how weights are drawn by initializer_range and its family's rules, and a run by the fields of
its model. Of the matrices of a kind, one for each layer and expert, the table has the mean of their
stds, the std that is least like the configured one, and the configured one with 5 standard errors,
within which all must lie. Gains must be 1, and biases 0. Then come the cosine of two random
sequences, the share of sequences for which the preferred token is predicted, and of a mixture the
highest expert load of each layer, with theory and the interval that holds 95 % of models. At
--length below 64 the cosine has no interval: it also depends on the tokens that were drawn.

Exit codes: 0 all tensors are as said, 1 some are not, 2 wrong input.
"""

import math
import sys

from flax.traverse_util import flatten_dict
import numpy as np

from bornbiased_jax import storage
from bornbiased_jax.analysis import (
  Probe,
  combine,
  expert_loads,
  inter_sequence,
  measure,
  predictions,
  theory,
)
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError

from .shared import program
from .shared.networks import check_length, expand, step_of
from .shared.settings import ProgramSettings, arguments, setting
from .shared.tables import table

# Standard errors that a std may be off; one of 300 sound tensors is so in 6,000 networks.
LIMIT = 5
# Of shorter sequences the cosine varies with the tokens and embeddings drawn, which theory's
# standard deviation leaves out: ten times as much as that at 1 and 4 tokens.
LEAST_LENGTH = 64
# In the order in which a network uses them.
_MODULES = ['embedding', 'position_embedding', 'attention_norm', 'query', 'query_norm', 'key',
            'key_norm', 'value', 'output', 'attention_output_norm', 'mlp_norm', 'router',
            'shared_gate', 'gate', 'up', 'down', 'mlp_output_norm', 'final_norm', 'head']
UNITS = ('std: the standard deviation of the entries of one matrix, in the unit of the weights; of '
         'gains\n(scale) and biases, the largest difference from 1 and 0. The first layer is 1.')


class Settings(ProgramSettings):
  num_sequences: int = setting(1000)
  length: int = setting(64)
  probe_seed: int = setting(0)
  networks: list[str] = arguments('MODEL')


def main(settings):
  if len(settings.networks) != 1:
    raise InputError('give one model, such as my_model/checkpoint-0 or tiny_gpt2:42')
  given, = settings.networks
  name, *later = sorted(expand(given), key=lambda name: step_of(name) or 0)
  if later:
    raise InputError(f'{given} holds {len(later) + 1} checkpoints; give the first, {name}')
  config, params = storage.open(name).load()
  check_length(settings.length, config, name)
  rows = tensors(config, params)
  print(table([display(row) for row in rows]), UNITS, '', sep='\n')
  probe = Probe('tokens', settings.num_sequences, settings.length, settings.probe_seed)
  try:
    print(table(beside_theory(config, params, probe)),
          'of 20 models as configured, one lies outside an interval', sep='\n')
  except InputError as error:  # It does not know all architectures.
    print(error)
  wrong = [row['tensor'] for row in rows if row['is_off']]
  print(f'\nnot as the configuration says: {", ".join(wrong)}' if wrong else
        '\nall tensors are as the configuration says')
  sys.exit(1 if wrong else 0)


def tensors(config: ModelConfig, params: dict) -> list[dict]:
  """A row for each kind of tensor: what its entries deviate from, and by how much they should."""
  rows = []
  leaves = flatten_dict(params, sep='/')
  for name in sorted(leaves, key=_place):
    leaf = leaves[name]
    *above, kind = name.split('/')
    is_drawn = kind not in ('scale', 'bias')
    if config.init_scheme == 'centred' and name.endswith('down/bias'):
      continue  # It has a mean that follows from the kernel.
    said = config.std_of(above[-1] if kind == 'kernel' else kind) if is_drawn else 0.0
    matrices = np.asarray(leaf).reshape(-1, np.prod(leaf.shape[-2 if is_drawn else -1:]))
    if is_drawn:
      std = np.array([matrix.std(dtype=np.float64) for matrix in matrices])
    else:
      std = np.abs(matrices - (kind == 'scale')).max(axis=1)
    index = np.abs(std - said).argmax()
    is_each = name.startswith('blocks') and len(std) >= config.num_layers
    layer = int(index) * config.num_layers // len(std) if is_each else None
    farthest = std[index]
    off = LIMIT * said / (2 * matrices.shape[1])**0.5
    rows.append({'tensor': name, 'matrices': len(std), 'std': std.mean(), 'farthest': farthest,
                 'layer': layer, 'said': said, 'off': off,
                 'is_off': not abs(farthest - said) <= off})
  return rows


def _place(name):
  """Where a tensor is used: by its module, and its weight before its bias."""
  *above, kind = name.split('/')
  module = above[-1] if above else kind
  return _MODULES.index(module) if module in _MODULES else len(_MODULES), kind == 'bias', name


def display(row: dict) -> dict[str, str]:
  return {'tensor': row['tensor'], 'matrices': row['matrices'], 'mean std': f'{row["std"]:.5f}',
          'least fitting std': f'{row["farthest"]:.5f}',
          'in layer': '–' if row['layer'] is None else row['layer'] + 1,
          'configured std': f'{row["said"]:.5f} ± {row["off"]:.5f}',
          'all fit': 'NO' if row['is_off'] else 'yes'}


def beside_theory(config: ModelConfig, params: dict, probe: Probe) -> list[dict]:
  """What is measured of the model, with theory and the interval that holds 95 % of models."""
  parts = {'preference': predictions(config.vocab_size),
           'similarity': inter_sequence('hidden_last')}
  if config.num_experts > 1:
    parts['experts'] = expert_loads(config.experts_per_token)
  found, = measure((config, params), combine(parts), probe)
  values = [('cosine of two sequences', found['similarity']['cosine']),
            ('share of sequences with the preferred token', found['preference']['top1_frequency'])]
  if config.num_experts > 1:
    values += [(f'highest expert load, share of choices in layer {i}', load)
               for i, load in enumerate(found['experts']['share'].max(axis=-1), 1)]
  rows = []
  for (name, value), (mean, low, high) in zip(values, expected(config, probe), strict=True):
    is_known, is_inside = low < high, low - 1e-6 <= value <= high + 1e-6
    rows.append({'measured': name, 'this model': f'{value:.4f}', 'theory, mean': f'{mean:.4f}',
                 'theory, 95 % of models': f'{low:.4f} to {high:.4f}' if is_known else '–',
                 'this one lies': '–' if not is_known else 'inside' if is_inside else 'OUTSIDE'})
  return rows


def expected(config: ModelConfig, probe: Probe) -> list[tuple[float, float, float]]:
  """Mean and ends of the 95 % interval of each number of `beside_theory`, in its order."""
  finite = theory.finite_width(config, probe.length)
  mean, std = float(finite.inter_cosine_L[-1]), float(finite.inter_cosine_std)
  preferred = theory.preference_at_initialization(config, probe.length, probe.num_sequences)
  if probe.length < LEAST_LENGTH:
    std = math.nan
  drawn = [preferred.top1_frequency_N]
  if config.num_experts > 1:
    drawn += list(theory.expert_shares(config, probe.length).share_LNE.max(axis=-1))
  return [(mean, mean - 1.96 * std, mean + 1.96 * std)] + [
      (each_N.mean(), *np.percentile(each_N, (2.5, 97.5))) for each_N in drawn]


if __name__ == '__main__':
  program.run(main, 'initialization', Settings, __doc__, has_folder=False)
