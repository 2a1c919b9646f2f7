"""Turns text into token ids on disk, which pretraining reads without holding them.

    python -m experiments.tokenize_text --input=english.jsonl.xz --output_dir=corpora/english

--input takes .txt and .jsonl files, both also as .xz, folders of them, and prepared
tensorflow-datasets as tfds:NAME[:split], comma-separated. --tokenizer takes 'bytes', a
SentencePiece .model file, or a folder with GPT-2's encoder.json and vocab.bpe. The last two need
the extra: pip install -e '.[text]'. One core turns about 5 MB of text per second into ids with
SentencePiece, and 11 MB with GPT-2's BPE.

Writes tokens.bin (uint16 or uint32) and tokens.json to the output folder. If a run was stopped,
the same command continues it.
"""

from absl import flags

from bornbiased_jax.data import load_tokenizer, text, write
from bornbiased_jax.errors import InputError

from .shared import command_line
from .shared.command_line import flagged

NAMES = ('input', 'output_dir', 'tokenizer')


def main():
  inputs, output_dir = command_line.required('input', 'output_dir')
  if not all(part.strip() for part in inputs.split(',')):
    raise InputError(f'--input: {inputs!r} has an empty item between its commas')
  loaded = flagged('tokenizer', load_tokenizer, flags.FLAGS.tokenizer)
  flagged('input', text.sources, inputs.split(','))
  made = write(inputs.split(','), loaded, output_dir)
  print(f'{output_dir}: {made.tokens.size:,} tokens ({made.tokens.dtype}) of tokenizer '
        f'{made.tokenizer}')


if __name__ == '__main__':
  flags.DEFINE_string('input', None,
                      'text files, folders of them, or tfds:NAME[:split], comma-separated')
  flags.DEFINE_string('output_dir', None, 'folder of tokens.bin and tokens.json')
  flags.DEFINE_string('tokenizer', 'bytes',
                      "'bytes', a SentencePiece .model file, or a folder with GPT-2's encoder.json "
                      "and vocab.bpe (default: bytes)")
  command_line.launch(main, __doc__, NAMES)
