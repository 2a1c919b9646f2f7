"""Continues a text with a model, one token after another.

    python -m experiments.sample results/pretrain_laptop/seed_42 --prompt='To be, or not'
    python -m experiments.sample my_llama/ --prompt='The capital of France is' --temperature=0
    python -m experiments.sample tiny_gpt2:42 --tokenizer=none --prompt='5 7 11'

A model is given as a run of experiments.pretrain (RUN for its latest checkpoint, RUN@STEP for
another one), a Hugging Face model folder (safetensors), ORG/MODEL[@REVISION] of the Hub, one of
these two with an adapter of PEFT (BASE+ADAPTER), or a random one (PRESET:SEED, config.json:SEED).

The tokenizer is known of a run on bytes, and of a folder with tokenizer.json, SentencePiece's
tokenizer.model, or GPT-2's vocab.json and merges.txt; give any other as --tokenizer. The text
begins with the id that a run was trained with, else with the BOS that the tokenizer's files ask
for, else with --start_id. With --tokenizer=none the prompt is only token ids, and ids are printed.

Prints the prompt and its continuation. The end of a document is shown as <|endoftext|>, and the
model goes on with another one. Every token costs a forward pass over the whole text.
"""

import sys

import jax
import numpy as np

from bornbiased_jax import models, storage
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.data import Tokenizer, load_tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.fields import natural, number, whole
from bornbiased_jax.storage import Model, hub

from .shared import program
from .shared.networks import beginning_of
from .shared.settings import ProgramSettings, arguments, name_flag, setting


def utf8(text: str) -> str:
  """The text; raises InputError for bytes of a command line that are none."""
  try:
    text.encode()
  except UnicodeEncodeError:
    raise InputError(f'{text!a} is not UTF-8') from None
  return text


class Settings(ProgramSettings):
  prompt: str = setting('', utf8, 'text to begin with; if empty, a document begins')
  num_tokens: int = setting(200, lambda text: whole(text, 1, 2**20), 'tokens to add')
  temperature: float = setting(1.0, number, 'divides the logits; 1 draws from the probabilities '
                                            'of the model, 0 takes the likeliest token')
  seed: int = setting(0, natural, 'seed of the random draws')
  tokenizer: str | None = setting(
      None, str, "'bytes', a tokenizer.json, a SentencePiece .model file, a folder with one or "
      "with GPT-2's encoder.json and vocab.bpe, or 'none' for token ids; if not given, the "
      "model's own")
  start_id: int | None = setting(
      None, natural, 'token id that the text begins with, if the run and the tokenizer do not '
      'name one')
  networks: list[str] = arguments('MODEL')


def main(settings):
  if len(settings.networks) > 1:
    raise InputError(f'{" ".join(settings.networks)}: give one model, and a text as --prompt')
  if not settings.networks:
    raise InputError('give one model: RUN[@STEP], a Hugging Face model folder, ORG/MODEL[@REVISION]'
                     ' of the Hub, BASE+ADAPTER, PRESET:SEED or config.json:SEED')
  print(continued(settings.networks[0], settings.prompt, settings.num_tokens, settings.temperature,
                  settings.seed, settings.tokenizer, settings.start_id))


def continued(name: str, prompt: str = '', num_tokens: int = 200, temperature: float = 1.0,
              seed: int = 0, tokenizer: str | None = None, start_id: int | None = None) -> str:
  """The prompt and what the model `name` adds, as text or, without a tokenizer, as ids."""
  model = storage.open(name)
  config = model.config
  known = None if tokenizer == 'none' else name_flag('tokenizer', tokenizer_of, model, tokenizer)
  begin = ()
  if known and (beginning := beginning_of(model, known, start_id)).ids:
    begin = beginning.ids
    print(f'the text begins with id {beginning}', file=sys.stderr)
  ids = name_flag('prompt', ids_of, prompt, config, known, begin)
  config, params = model.load()
  added = models.sample(config, params, ids[None], num_tokens, jax.random.key(seed), temperature,
                        known.vocab_size if known else None)
  ids = np.concatenate([ids, added[0]])
  return known.decode(ids[len(begin):]) if known else ' '.join(map(str, ids))


def tokenizer_of(model: Model, given: str | None) -> Tokenizer:
  """The tokenizer that is given for a model, or else the one that it is known to have."""
  trained = 'unknown'
  if model.kind == 'run':
    trained = (model.recorded.get('data') or {}).get('tokenizer', trained)
  known = model.place if model.kind == 'transformers' else 'bytes' if trained == 'bytes' else None
  if model.kind == 'hub' and not given:
    known = str(hub.tokenizer(model.place))
  if not (given or known):
    raise InputError(f"of {model.name} is {trained}; give its files, or 'none' for "
                     'token ids')
  found = load_tokenizer(given or known)
  if trained not in ('unknown', found.name):
    raise InputError(f'{model.name} was trained with {trained}, and this is {found.name}')
  return found


def ids_of(prompt: str, config: ModelConfig, tokenizer: Tokenizer | None,
           begin: tuple[int, ...]) -> np.ndarray:
  """Ids [T] of a prompt after `begin`. An empty one without it is the end of a document."""
  if tokenizer is None:
    ids = [whole(word, 0, config.vocab_size - 1) for word in prompt.split()]
    if not ids:
      raise InputError('is missing: token ids, for instance 5 7 11')
    return np.array(ids)
  ids = np.array([*begin, *tokenizer.encode(prompt)] or [tokenizer.end_id])
  if ids.max() >= config.vocab_size:
    raise InputError(f'{prompt!r} has id {ids.max()} of tokenizer {tokenizer.name}, but the '
                     f'model has only {config.vocab_size} ids; give its own --tokenizer')
  return ids


if __name__ == '__main__':
  program.run(main, 'sample', Settings, __doc__, has_folder=False)
