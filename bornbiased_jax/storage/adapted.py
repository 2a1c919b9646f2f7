"""Names of models with an adapter of PEFT: BASE+ADAPTER, or an adapter whose base it names.

BASE is a directory of `transformers` or a model of the Hugging Face Hub, ADAPTER a directory or a
repository there.
"""

import os
from pathlib import Path
import re

from bornbiased_jax.errors import InputError, show
from bornbiased_jax.files import path_of, read_json
from bornbiased_jax.storage import hub
from bornbiased_jax.storage.huggingface.adapters import CONFIG, is_adapter


def split(name: str) -> tuple[str, Path | None]:
  """The base and the folder of the adapter that a name means; (name, None) if it means none."""
  if is_adapter(path_of(name)):
    return _base_of(path_of(name)), path_of(name)
  if path_of(name).exists():
    return name, None
  pairs = [(name[:plus.start()], name[plus.end():]) for plus in re.finditer(r'\+', name)]
  # A folder comes first, as its parent may be called like a model of the Hub.
  for is_base in (os.path.exists, hub.is_name):
    for base, adapter in pairs:
      if is_base(base):
        return base, hub.fetch_adapter(adapter) if hub.is_name(adapter) else path_of(adapter)
  return name, None


def _base_of(folder):
  """The folder or the name on the Hub, with its commit, that an adapter says it belongs to."""
  stored = read_json(folder / CONFIG)
  base, revision = stored.get('base_model_name_or_path'), stored.get('revision')
  try:
    if isinstance(base, str) and os.path.isdir(base):
      return base
    if isinstance(base, str) and hub.is_name(base):
      return hub.pinned(f'{base}@{revision}' if revision else base)
    raise InputError('it is neither a folder here nor a name of the Hugging Face Hub')
  except InputError as error:
    raise InputError(f'{folder / CONFIG}: base_model_name_or_path={show(base)} is not found '
                     f'({error}); give the base yourself, BASE+{folder}') from None
