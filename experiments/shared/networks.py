"""The networks that experiments compare: what they read, and where a training study keeps them."""

from collections.abc import Iterable
import itertools
from pathlib import Path
import re
import sys
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from bornbiased_jax.analysis import Probe, attention_sink
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import Tokenizer, load_tokenizer
from bornbiased_jax.environment import free_memory
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage import METHODS, HiddenStates, Signature, Subject, states
from bornbiased_jax.lineage.baselines.methods import NUM_STATEMENTS, Score
from bornbiased_jax.lineage.comparison import seedprint
from bornbiased_jax.lineage.networks import streamed
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import Model, checkpoint

from .base_settings import Inputs, load_text
from .settings import name_flag, values_of

# 'step' goes before the other words. A number such as 1.5k, 1e4 or 1,000 is none.
_STEPS = [re.compile(rf'(?<![a-z])(?:{word})[-_=]?0*(\d+)(?![\d.,]|[kme]|b\b)', re.IGNORECASE)
          for word in ('step', 'checkpoint|ckpt|iter')]

_NUMBER = re.compile(r'^(\d+)$')


def probe_of(settings: Inputs) -> Probe:
  """What the networks read; tokens of any id, unless the settings say another thing."""
  return Probe(getattr(settings, 'probe', 'tokens'), settings.num_sequences, settings.length,
               settings.probe_seed, getattr(settings, 'num_ids', None))


def folder_name(settings: Any, models: list[str], names: Iterable[str]) -> str:
  """A folder of these models: their names, and of the settings `names` those not the scale's."""
  changed = [f'{name}_{getattr(settings, name)}' for name in names
             if getattr(settings, name) != values_of(type(settings), name)[settings.scale]]
  plain = lambda text: re.sub(r'[^\w@.-]+', '_', text).strip('_')[-80:]
  return '_'.join(['_and_'.join(map(plain, models)), *map(plain, changed)])[-240:]


def take(name: str, probe: Probe, cache: Path) -> HiddenStates:
  """The hidden states of the network `name`, from the folder `cache` if they are there."""
  with tqdm(total=probe.num_sequences, desc=name[-40:], unit='seq', delay=1, leave=False) as bar:
    return states(name, probe, cache, on_batch=bar.update)


def tell_streamed(network: Model | Signature, stream: str) -> None:
  """Says that a network will be read layer by layer, if it will (`lineage.networks.streamed`)."""
  if isinstance(network, Model) and (layers := streamed(network, stream)):
    size, free = 4e-9 * num_parameters(layers.config), free_memory() / 1e9
    why = ('as --stream=always asks' if stream == 'always' else
           f'{size:,.1f} GB in float32 are too much for the {free:,.1f} GB that are free')
    print(f'{network.name} is read layer by layer ({why})', file=sys.stderr)


def check_readable(name: str, network: Model | Signature, probe: Probe) -> None:
  """Raises InputError if the network `name` cannot read a probe; a saved signature has read."""
  if isinstance(network, Signature):
    return
  check_length(probe.length, network.config, name)
  if (probe.num_ids or 0) > network.config.vocab_size:
    raise InputError(f'--num_ids: {probe.num_ids} exceeds the {network.config.vocab_size} token '
                     f'ids of {name}')


def check_length(length: int, config: ModelConfig, name: str, flag: str = 'length') -> None:
  """Raises InputError, which names the flag, for sequences that the network `name` cannot read."""
  if length > config.length:
    raise InputError(f'--{flag}: {length} exceeds the {config.length} positions of {name}')


def check_shortest(length: int, flag: str = 'lengths') -> None:
  """Raises InputError, which names the flag, where uniform attention makes the first a sink."""
  is_sink = lambda length: attention_sink.uniform_weight(length) > attention_sink.THRESHOLD
  if is_sink(length):
    least = next(more for more in itertools.count(length) if not is_sink(more))
    raise InputError(f'--{flag}: in sequences of {length} tokens uniform attention is a sink '
                     f'already; give at least {least}')


def check_sequences(settings: Inputs, config: ModelConfig) -> None:
  """Raises InputError for sequences that are too long for networks, or too few to project out what
  two networks read in common.
  """
  check_length(settings.length, config, 'the networks')
  name_flag('num_sequences', seedprint.check_projectable, settings.num_sequences, config.width)


def run_of(settings: Any, phase: str, seed: int) -> Path:
  """The run of a seed in the study; that on 'english' must be there, as others go on from it."""
  run = Path(settings.study).expanduser() / phase / f'seed_{seed}'
  if phase == 'english' and 0 not in checkpoint.steps(run):
    raise InputError(f'--study: {run} has no checkpoint of step 0; give a folder of '
                     'experiments.training_study, or other --seeds')
  return run


def latest(run: Path) -> str:
  """The network of a run's latest checkpoint, by a name that stays its own if the run goes on."""
  return f'{run}@{checkpoint.steps(run)[-1]}'


def continued(settings: Any) -> dict[tuple[str, int], Path]:
  """The runs that went on from those on English, by text and seed.

  A text is a folder of the study: 'python', and what `pretrain --init_from` wrote next to it, such
  as 'stories' or 'instructions'.
  """
  texts = sorted(path.name for path in Path(settings.study).expanduser().iterdir()
                 if path.name != 'english')
  runs = {(text, seed): run_of(settings, text, seed) for text in texts for seed in settings.seeds}
  return {key: run for key, run in runs.items() if checkpoint.steps(run)}


def check_seeds(seeds: list[int]) -> None:
  """Raises InputError for so few networks that their pairs have no spread."""
  if len(seeds) < 3:
    raise InputError('--seeds: at least three networks are needed')


def with_others(seeds: list[int]) -> list[tuple[int, int]]:
  """Each seed paired with the next, and the last with the first."""
  if len(seeds) < 2:
    raise InputError('--seeds: at least two, since networks of different seeds are compared')
  return list(zip(seeds, [*seeds[1:], seeds[0]], strict=True))


def passages(text: str, tokenizer: str, length: int, config: ModelConfig) -> np.ndarray:
  """NUM_STATEMENTS passages of `length` tokens, spread evenly over a text."""
  check_length(length, config, 'the networks', 'statement_length')
  loaded = name_flag('tokenizer', load_tokenizer, tokenizer)
  if loaded.vocab_size > config.vocab_size:
    raise InputError(f'--tokenizer: {tokenizer} has {loaded.vocab_size} token ids, the networks '
                     f'{config.vocab_size}')
  tokens = load_text('statements', text, loaded).tokens
  num_windows = len(tokens) // length
  if num_windows < NUM_STATEMENTS:
    raise InputError(f'--statements: {text} has {num_windows} passages of {length} tokens; at '
                     f'least {NUM_STATEMENTS} are needed')
  chosen = np.linspace(0, num_windows - 1, NUM_STATEMENTS).astype(int)
  return np.stack([tokens[i * length:(i + 1) * length] for i in chosen]).astype(np.int32)


class Beginning(NamedTuple):
  """The ids that sequences begin with, and who says so."""

  ids: tuple[int, ...]
  said_by: str

  def __str__(self):
    return f'{" ".join(map(str, self.ids))} ({self.said_by})' if self.ids else '–'


def beginning_of(model: Model, tokenizer: Tokenizer, start_id: int | None = None) -> Beginning:
  """What the run of a network was trained with, else the BOS of its tokenizer, else --start_id."""
  if model.kind == 'run':
    trained = (model.recorded.get('recipe') or {}).get('start_id')
    known = Beginning(() if trained is None else (trained,), 'run')
  else:
    known = Beginning(tokenizer.begin_ids, 'tokenizer')
  if start_id is None:
    return known
  if known.ids not in ((), (start_id,)):
    raise InputError(f'--start_id: {start_id}, but sequences of {model.name} begin with {known}')
  return known if known.ids else Beginning((start_id,), '--start_id')


def subject(config: ModelConfig, params: dict, settings: Inputs,
            statements: np.ndarray | None = None) -> Subject:
  """A network as the methods of `METHODS` take it."""
  return Subject(config, params, probe_of(settings), statements)


def compare(method: str, base: Subject, suspect: Subject) -> Score:
  """Score and log10 p; the score is None if the method cannot compare these architectures."""
  try:
    return METHODS[method].score(base, suspect)
  except InputError:
    return Score(None)


def expand(given: str) -> list[str]:
  """The checkpoints of a run, or of a folder with a folder for each step, or the name itself."""
  path = path_of(given)
  steps = checkpoint.steps(path)
  if steps and not any((path / str(step) / 'config.json').exists() for step in steps):
    return [f'{given.rstrip("/")}@{step}' for step in steps]
  children = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
  inside = [child for child in children if step_of(child.name) is not None]
  if not inside:
    return [given]
  for child in children:
    if child not in inside:
      print(f'left out: {child} has no step in its name', file=sys.stderr)
  return [str(_network_in(child)) for child in inside]


def _network_in(step):
  """The folder of a step, or the only one of transformers in it, at any depth."""
  if (step / 'config.json').exists():
    return step
  found = sorted(file.parent for file in step.rglob('config.json'))
  if len(found) > 1:
    raise InputError(f'{step} holds several models; give all of one kind, such as '
                     f'{step.parent}/*/{found[0].relative_to(step)}')
  return found[0] if found else step


def step_of(name: str) -> int | None:
  """The step that a name claims, or else the step of the nearest folder above it.

  >>> [step_of(name) for name in ('org/a@stage1-step1000-tokens4B', 'run@7', 'x/a_010', 'b-70m')]
  [1000, 7, 10, None]
  >>> [step_of(name) for name in ('ckpt2-step1000', 'misstep3-1000', 'epoch=1-step=50', 'step1.5k')]
  [1000, 1000, 50, None]
  >>> [step_of(name) for name in ('step1b', 'ckpt20bf16')]  # A billion is no number of steps.
  [None, 20]
  >>> [step_of(name) for name in ('global_step_20/actor/huggingface', '000500/pretrained_model')]
  [20, 500]
  """
  *above, last = re.split('[@/]', name.rstrip('/'))
  if match := re.search(r'(?:^|[-_])(\d+)$', last):
    above = [*above, match[1]]
  for part in (last, *reversed(above)):
    for pattern in (*_STEPS, _NUMBER):
      if match := pattern.search(part):
        return int(match[1])
  return None
