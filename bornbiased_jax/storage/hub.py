"""Models of the Hugging Face Hub, by their names there: ORG/MODEL or ORG/MODEL@REVISION.

Fetched are config.json, the safetensors files that belong together, and the files of a tokenizer,
never code or pickles. The package `huggingface_hub` fetches them, and what it makes of its own
settings holds here too: HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN.
"""

import contextlib
import importlib
import os
from pathlib import Path
import re
from typing import Any

import jax

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import huggingface, huggingface_files
from bornbiased_jax.storage.huggingface_entries import show

_NAME = re.compile(r'(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@([\w.-]+(?:/[\w.-]+)*))?', re.ASCII)
# What no model or revision is called, in the words of the Hub.
_FORBIDDEN = '--', '..'
# Those that `data.tokenizers.load` reads.
_TOKENIZER = 'tokenizer.model', 'tokenizer.json', 'vocab.json', 'merges.txt'
_PICKLES = 'pytorch_model.bin', 'pytorch_model.bin.index.json'
_NO_FOLDER = 'there is no such folder here'


class _NotCached(InputError):
  """A file is not at hand, and whether the Hub has it is not known."""


def is_name(name: str) -> bool:
  """Whether a name has the form of a model of the Hub, and neither file nor folder has it here.

  Example:
    >>> is_name('EleutherAI/pythia-70m@step3000'), is_name('my_llama'), is_name('./results/run')
    (True, False, False)
  """
  match = _NAME.fullmatch(name)
  if not match or name.endswith('.npz') or any(part in name for part in _FORBIDDEN):
    return False
  return not (os.path.exists(name) or os.path.exists(match[1]))


def load_config(name: str) -> ModelConfig:
  """The configuration alone, for which config.json alone is fetched.

  Raises:
    InputError: the Hub has no such model or revision, does not show it to this user, or does
      not answer; the model is of no kind that `huggingface.load` knows; or `huggingface_hub` is
      not installed.
  """
  return huggingface.load_config(_config(name))


def load(name: str, mesh: jax.sharding.Mesh | None = None) -> tuple[ModelConfig, dict]:
  """Fetches a model (`fetch`), and loads it as `huggingface.load` does."""
  return huggingface.load(fetch(name), mesh)


def fetch(name: str) -> Path:
  """The folder of a model, fetched as far as it is not in the cache.

  Nothing large is fetched before config.json is found to be right.

  Raises:
    InputError: as `load_config`, or the model has no safetensors.
  """
  folder = _config(name)
  huggingface.load_config(folder)
  _fetch_weights(f'{_split(name)[0]}@{folder.name}', folder)
  return folder


def pinned(name: str) -> str:
  """The name with the commit that its revision is now. Raises InputError as `load_config` does."""
  return f'{_split(name)[0]}@{_config(name).name}'


def tokenizer(name: str) -> Path:
  """Fetches what `data.tokenizers.load` may read, into one folder; there may be nothing.

  Raises InputError as `load_config` does.
  """
  folder = _config(name)
  for file in _TOKENIZER:
    with contextlib.suppress(_NotCached):
      _find(f'{_split(name)[0]}@{folder.name}', file)
  return folder


def _config(name):
  """Fetches config.json; its folder is named by the commit."""
  if file := _find(name, 'config.json'):
    return file.parent
  raise InputError(f'{name} on the Hugging Face Hub has no config.json, so that it is no model '
                   'of transformers')


def _fetch_weights(name, folder):
  # What is at hand comes first, so that nothing is asked of the Hub if all is.
  is_absent = lambda file: not (folder / file).exists()
  first = _find(name, *sorted((huggingface_files.WHOLE, huggingface_files.INDEX), key=is_absent))
  if first is None:
    raise InputError(_without_safetensors(name))
  is_index = first.name == huggingface_files.INDEX
  for shard in huggingface_files.shard_names(first) if is_index else ():
    if not _find(name, shard):
      raise InputError(f'{name} on the Hugging Face Hub has no {shard}; its {first.name} asks for '
                       'it')


def _split(name):
  match = _NAME.fullmatch(name)
  if not match:
    raise InputError(f'{name} is not a name of the Hugging Face Hub: ORG/MODEL[@REVISION]')
  return match.groups()


def _find(name, *files) -> Path | None:
  """The first of these files that the Hub or its cache has, or None if the Hub has none."""
  library, errors = _library(name)
  repo, revision = _split(name)
  missed = None
  for file in files:
    try:
      return Path(library.hf_hub_download(repo, file, revision=revision))
    except errors.LocalEntryNotFoundError as error:
      missed = error
    except errors.EntryNotFoundError:
      continue
    # What else comes through depends on the versions of this library and of those below it.
    except Exception as error:
      raise InputError(_explained(name, file, error, errors)) from None
  if missed:
    raise _NotCached(_unreached(name, files, missed, errors)) from None
  return None


def _library(name) -> tuple[Any, Any]:
  try:
    return importlib.import_module('huggingface_hub'), importlib.import_module(
        'huggingface_hub.errors')
  except ImportError:
    raise InputError(f'{name}: {_NO_FOLDER}, and models of the Hugging Face Hub need '
                     "huggingface_hub: pip install 'bornbiased_jax[hub]'") from None


def _explained(name, file, error, errors):
  """What a failed request means, in one line."""
  repo, revision = _split(name)
  if isinstance(error, errors.GatedRepoError):
    return (f'{name} is gated: ask for access at its page on the Hugging Face Hub, and give a '
            'token that has it, by HF_TOKEN or `hf auth login`')
  if isinstance(error, errors.RepositoryNotFoundError):
    return (f'{name}: {_NO_FOLDER}, and no such model on the Hugging Face Hub, or a private one, '
            'which needs a token, by HF_TOKEN or `hf auth login`')
  if isinstance(error, errors.RevisionNotFoundError):
    return (f'{repo} on the Hugging Face Hub has no revision {revision or "main"}; give a branch, '
            'a tag or a commit that its page lists')
  return f'{name}: {file} cannot be fetched from the Hugging Face Hub: {_reason(error)}; try again'


def _unreached(name, files, error, errors):
  """Where the Hub gives nothing, the name may also be a misspelt path."""
  files = ' or '.join(files)
  if isinstance(error.__cause__, errors.OfflineModeIsEnabled):
    return (f'{name}: {_NO_FOLDER}, and the cache of the Hugging Face Hub has no {files} of such a '
            'model, which HF_HUB_OFFLINE keeps from being fetched')
  return (f'{name}: {_NO_FOLDER}, and the Hugging Face Hub does not give {files} of such a model: '
          f'{_reason(error.__cause__ or error)}')


def _reason(error):
  return show(' '.join(str(error).split()) or type(error).__name__)


def _without_safetensors(name):
  library, _ = _library(name)
  repo, commit = _split(name)
  message = f'{name} on the Hugging Face Hub has no safetensors'
  for file in _PICKLES:
    # Only whether it is there is asked.
    with contextlib.suppress(Exception):
      if library.file_exists(repo, file, revision=commit):
        source = f"'{repo}', revision='{commit}'"
        return f'{message}, but {huggingface_files.pickle_advice(file, source, "my_model")}'
  return message
