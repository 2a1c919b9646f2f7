"""Models of the Hugging Face Hub, by their names there: ORG/MODEL or ORG/MODEL@REVISION.

Fetched are config.json, the safetensors files that belong together, and the files of a tokenizer,
never code or pickles. The package `huggingface_hub` fetches them, and its own settings hold here
too: HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN.
"""

import os
from pathlib import Path
import re

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import read_json
from bornbiased_jax.storage.huggingface import adapters
from bornbiased_jax.storage.huggingface.tensors import INDEX, WHOLE, pickle_advice, read_index

_NAME = re.compile(r'(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@([\w.-]+(?:/[\w.-]+)*))?', re.ASCII)
# What no model or revision is called, in the words of the Hub.
_FORBIDDEN = '--', '..'
_TOKENIZER = ('tokenizer.json', 'tokenizer.model', 'tokenizer_config.json', 'vocab.json',
              'merges.txt', 'special_tokens_map.json', 'added_tokens.json')


def is_name(name: str) -> bool:
  """Whether a name has the form of a model of the Hub, and no folder here is called as its ORG.

  So no server is asked for a misspelt path.
  """
  match = _NAME.fullmatch(name)
  if not match or any(part in name for part in _FORBIDDEN):
    return False
  return not os.path.isdir(match[1].partition('/')[0])


def fetch(name: str) -> Path:
  """The folder of a model, fetched as far as it is not in the cache.

  Nothing large is fetched before the index of the shards is found to be right.
  """
  folder = _fetch(name, INDEX)
  is_split = (folder / INDEX).is_file()
  files = sorted(set(read_index(folder / INDEX).values())) if is_split else [WHOLE]
  folder = _fetch(f'{_split(name)[0]}@{folder.name}', *files)
  if not (folder / files[0]).is_file():
    advice = pickle_advice('what it may have besides', repr(_split(name)[0]), 'my_model')
    raise InputError(f'{name} on the Hugging Face Hub, or in its cache here, has no {files[0]}; '
                     f'{advice}')
  return folder


def fetch_adapter(name: str) -> Path:
  """The folder of an adapter of PEFT, fetched; raises InputError as `fetch` does."""
  return _fetch(name, adapters.WEIGHTS, header=adapters.CONFIG)


def base_of(folder: Path) -> str:
  """The folder, or the name here with its commit, that an adapter says it belongs to."""
  stored = read_json(folder / adapters.CONFIG)
  base, revision = stored.get('base_model_name_or_path'), stored.get('revision')
  try:
    if isinstance(base, str) and os.path.isdir(base):
      return base
    if isinstance(base, str) and is_name(base):
      return pinned(f'{base}@{revision}' if revision else base)[0]
    raise InputError('it is no folder here and no name of the Hugging Face Hub')
  except InputError as error:
    raise InputError(f'{folder / adapters.CONFIG}: base_model_name_or_path={show(base)} is not '
                     f'found ({error}); give the base yourself, BASE+{folder}') from None


def pinned(name: str) -> tuple[str, Path]:
  """The name with the commit that its revision is now, and the folder that has its config.json."""
  folder = _fetch(name)
  return f'{_split(name)[0]}@{folder.name}', folder


def tokenizer(name: str) -> Path:
  """The folder with the files of a model's tokenizer, if it has any."""
  return _fetch(name, *_TOKENIZER)


def _split(name):
  """ORG/MODEL and the revision, of a name that `is_name` accepts."""
  return _NAME.fullmatch(name).groups()


def _fetch(name, *files, header='config.json'):
  """The folder, named by the commit, with the header and all of the files that exist."""
  repo, revision = _split(name)
  try:
    import huggingface_hub.constants
    import huggingface_hub.errors
  except ImportError:
    raise InputError(f'{name}: there is no such folder here, and models of the Hugging Face Hub '
                     "need huggingface_hub: pip install 'bornbiased_jax[hub]'") from None
  try:
    folder = Path(huggingface_hub.snapshot_download(
        repo, revision=revision, allow_patterns=['config.json', adapters.CONFIG, *files],
        local_files_only=huggingface_hub.constants.HF_HUB_OFFLINE))
  # What else comes through depends on the versions of this library and of those below it.
  except Exception as error:
    raise InputError(_explain(name, error, huggingface_hub)) from None
  if not (folder / header).is_file():
    if (folder / adapters.CONFIG).is_file():
      raise InputError(f'{name} on the Hugging Face Hub is an adapter; give BASE+{name}')
    kind = 'model of transformers' if header == 'config.json' else 'adapter of PEFT'
    raise InputError(f'{name} on the Hugging Face Hub, or in its cache here, has no {header}, '
                     f'so that it is no {kind}')
  return folder


def _explain(name, error, library):
  """What a failed request means, in one line."""
  errors = library.errors
  if isinstance(error, errors.GatedRepoError):
    return (f'{name} is gated: ask for access at its page on the Hugging Face Hub, and give a '
            'token that has it, by HF_TOKEN or `hf auth login`')
  if isinstance(error, errors.RepositoryNotFoundError):
    return (f'{name}: there is no such folder here, and no such model on the Hugging Face Hub, or '
            'a private one, which needs a token, by HF_TOKEN or `hf auth login`')
  if isinstance(error, errors.RevisionNotFoundError):
    return (f'{name}: the Hugging Face Hub has no such revision of it; give a branch, a tag or a '
            'commit that its page lists')
  if library.constants.HF_HUB_OFFLINE:
    return (f'{name}: there is no such folder here, and not all of it in the cache of the Hugging '
            'Face Hub, and HF_HUB_OFFLINE keeps it from being fetched')
  if isinstance(error, errors.LocalEntryNotFoundError):
    return (f'{name}: there is no such folder here, nor in the cache of the Hugging Face Hub, '
            'which cannot be reached')
  reason = show(' '.join(str(error).split()) or type(error).__name__)
  # The name may also be a misspelt path.
  return (f'{name}: there is no such folder here, and it cannot be fetched from the Hugging Face '
          f'Hub: {reason}; try again')
