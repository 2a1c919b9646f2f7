"""Text → a memory map of token ids, which pretraining reads with no memory of its own.

    python -m experiments.tokenize_text --input=english.jsonl.xz --tokenizer=bytes --output_dir=corpora/english

--input takes .txt and .jsonl files, also as .xz, folders of them, and prepared
tensorflow-datasets as tfds:NAME[:split], comma-separated. --tokenizer takes
'bytes', a SentencePiece .model file, or a folder with GPT-2's encoder.json and
vocab.bpe; the last two need the extra: pip install -e '.[text]'. One core turns
about 5 MB a second into ids with SentencePiece, 11 MB with GPT-2's BPE.

Writes tokens.bin (uint16 or uint32) and tokens.json to the output folder.
Started again, it goes on where it was.
"""

from absl import flags

from bornbiased_jax.data import corpus, tokenizers
from bornbiased_jax.errors import InputError
from experiments import command_line

NAMES = ('input', 'tokenizer', 'output_dir')


def main():
  inputs, tokenizer, output_dir = (flags.FLAGS[name].value for name in NAMES)
  for name, value in (('input', inputs), ('output_dir', output_dir)):
    if not value:
      raise InputError(f'--{name} is missing; see --help')
  if not all(part.strip() for part in inputs.split(',')):
    raise InputError(f'--input: {inputs!r} has an empty item between its commas')
  made = corpus.write(inputs.split(','), tokenizers.load(tokenizer), output_dir)
  print(f'{output_dir}: {made.tokens.size:,} tokens ({made.tokens.dtype}) of tokenizer {made.tokenizer}')


if __name__ == '__main__':
  flags.DEFINE_string('input', None, 'text files, folders of them or tfds:NAME[:split], comma-separated')
  flags.DEFINE_string('tokenizer', 'bytes', "'bytes', a SentencePiece .model file, or a folder with GPT-2's files")
  flags.DEFINE_string('output_dir', None, 'folder of tokens.bin and tokens.json')
  command_line.launch(main, __doc__, NAMES)
