"""Writes a model as a Hugging Face model folder, which transformers loads.

    python -m experiments.export config.json:42 my_folder   # random, as its config.json says
    python -m experiments.export results/pretrain_laptop/seed_42@0 my_folder --tokenizer=bytes
    python -m experiments.export my_llama/+my_adapter/ my_folder

A model is given as to experiments.sample. FOLDER must be missing or empty.
"""

from bornbiased_jax import storage
from bornbiased_jax.data import load_tokenizer
from bornbiased_jax.errors import InputError

from .shared import program
from .shared.settings import ProgramSettings, arguments, name_flag, setting


class Settings(ProgramSettings):
  tokenizer: str | None = setting(None, str, "'bytes' or a tokenizer's files, to write next to the "
                                  'model; if not given, none is written')
  names: list[str] = arguments('MODEL FOLDER')


def main(settings):
  if len(settings.names) != 2:
    raise InputError('give a model and a new folder, such as tiny_gpt2:42 my_folder')
  name, folder = settings.names
  tokenizer = name_flag('tokenizer', load_tokenizer, settings.tokenizer) if (
      settings.tokenizer) else None
  storage.huggingface.save(folder, *storage.open(name).load(), tokenizer)
  print(f'wrote {folder}')


if __name__ == '__main__':
  program.run(main, 'export', Settings, __doc__, has_folder=False)
