"""Turns text into token ids on disk, which pretraining reads in parts.

    python -m experiments.tokenize_text --input=english.jsonl.xz --output_dir=corpora/english

--input takes .txt and .jsonl files, both also as .xz, folders of them, and prepared
tensorflow-datasets as tfds:NAME[:split], comma-separated. --tokenizer takes 'bytes', a
tokenizer.json, a SentencePiece .model file, which needs the extra text (pip install -e '.[text]'),
or a folder with one or with GPT-2's encoder.json and vocab.bpe. One core turns about 5 MB of text
per second into ids with SentencePiece, and 11 MB with GPT-2's BPE.

Writes tokens.bin (uint16 or uint32) and tokens.json to the output folder. A run that was stopped
begins anew.
"""

import bornbiased_jax
from bornbiased_jax.errors import InputError

from .shared import program
from .shared.settings import ProgramSettings, name_flag, setting


def sources(given: str) -> list[str]:
  """Names of texts; all of them are there."""
  names = given.split(',')
  if not all(name.strip() for name in names):
    raise InputError(f'{given!r} has an empty item between its commas')
  if len(set(names)) < len(names):
    raise InputError(f'{given!r} names one twice')
  bornbiased_jax.data.text.sources(names)
  return names


class Settings(ProgramSettings):
  input: list[str] | None = setting(
      None, sources, 'text files, folders of them, or tfds:NAME[:split], comma-separated',
      hint='text files')
  output_dir: str | None = setting(None, str, 'folder of tokens.bin and tokens.json',
                                   hint='a folder')
  tokenizer: str = setting('bytes')


def main(settings):
  loaded = name_flag('tokenizer', bornbiased_jax.data.load_tokenizer, settings.tokenizer)
  try:
    made = bornbiased_jax.data.write(settings.input, loaded, settings.output_dir)
  except InputError as error:
    flag = 'output_dir' if error.field == 'directory' else 'input'
    raise InputError(f'--{flag}: {error}') from None
  print(f'{settings.output_dir}: {made.tokens.size:,} tokens ({made.tokens.dtype}) of tokenizer '
        f'{made.tokenizer}')


if __name__ == '__main__':
  program.run(main, 'tokenize_text', Settings, __doc__, has_folder=False)
