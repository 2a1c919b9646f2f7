"""Small tokenizers of every kind, made here, texts that are hard for them, and real ones."""

import io
import json
import lzma
import os
from pathlib import Path
import unicodedata

import pytest

from bornbiased_jax.data import text

DATA = Path(os.environ.get('BORNBIASED_DATA', Path(__file__).parents[2] / 'shared' / 'data'))
real = pytest.mark.skipif(not DATA.exists(), reason='BORNBIASED_DATA names no folder')
PROSE = ("It's 12345 o'clock;  the two dogs'll run -- \tthe  end.\n\n  indented\n\n\nand so on, "
         "we've the theatre there (then).\r\nNaïve café — Ünïcödé, "
         '日本語のテキスト, Русский текст, עברית, العربية 👩‍👩‍👧‍👦 '
         'e\u0301 \u00a0\u2003 end ')
UNICODE = ['', ' ', 'a', ' leading and trailing ', '\n\n\t', 'naïve café', '日本語のテキスト',
           '👩‍👩‍👧‍👦🏳️‍🌈',
           'e\u0301\u200b\ufeff', 'nul \0 byte', '\x85\u2028\u2029', 'עברית العربية', '𝔘𝔫𝔦',
           unicodedata.normalize('NFD', 'Tiếng Việt là ngôn ngữ, 한국어 텍스트'), 'ﾊﾞﾅﾅ ﬁne ＡＢ',
           '<|endoftext|> </s> <s> [INST]', PROSE]


def write_gpt2(folder):
  """A small vocabulary in GPT-2's format, merged by hand."""
  merges = [('t', 'h'), ('th', 'e'), ('Ġ', 'the'), ('e', 'r'), ('e', 'n'), ('Ġ', 'Ġ'),
            ('r', 'e'), ('1', '2'), ("'", 's'), ('Ġ', 'a'), ('l', 'l'), ('Ċ', 'Ċ'),
            ('Ã', '©'), ('en', 'd')]
  letters = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 324))]
  tokens = letters + [''.join(pair) for pair in merges]
  encoder = {token: i for i, token in enumerate([*tokens, '<|endoftext|>'])}
  (folder / 'encoder.json').write_text(json.dumps(encoder))
  (folder / 'vocab.bpe').write_text('#version: 0.2\n' + '\n'.join(map(' '.join, merges)) + '\n')
  return folder


def train_sentencepiece(folder, **options):
  sentencepiece = pytest.importorskip('sentencepiece')
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(**dict(
      sentence_iterator=iter(PROSE.split('\n') * 20), model_writer=model, vocab_size=400,
      model_type='bpe', byte_fallback=True, normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      character_coverage=0.98, hard_vocab_limit=False, minloglevel=2) | options)
  path = folder / 'small.model'
  path.write_bytes(model.getvalue())
  return path


def assert_parts_have_the_ids_of_the_whole(tokenizer, written=PROSE):
  """Asserts it for every place at which a reader may cut."""
  cuts = [match.start() for match in text.CUT.finditer(written)]
  assert len(cuts) > 10
  for cut in cuts:
    parts = [*tokenizer.encode(written[:cut]), *tokenizer.encode(written[cut:], continues=True)]
    assert parts == tokenizer.encode(written).tolist(), written[cut:]


def sample(name, characters=100_000):
  """The beginning of a real text."""
  with lzma.open(DATA / name, 'rt', encoding='utf-8') as file:
    return file.read(characters)
