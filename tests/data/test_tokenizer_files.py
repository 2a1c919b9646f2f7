"""The files of a tokenizer give the same ids in `transformers` and here."""

import json

import numpy as np
import pytest

from bornbiased_jax.data import load_tokenizer
from bornbiased_jax.errors import InputError
from directories import quiet_transformers
from small_tokenizers import DATA, PROSE, UNICODE, real, sample, train_sentencepiece, write_gpt2

# Texts without the names of special tokens.
TEXTS = [*UNICODE[:-2], PROSE, '  two  spaces  ', '▁ ▁▁', '\u3000ideographic ', 'ﬁ Å ①']
SENTENCEPIECE = {
    'llama': {}, 'gemma': {'add_dummy_prefix': False}, 'unigram': {'model_type': 'unigram'},
    't5': {'normalization_rule_name': 'nmt_nfkc', 'remove_extra_whitespaces': True},
    'default': {'model_type': 'unigram', 'byte_fallback': False, 'remove_extra_whitespaces': True,
                'normalization_rule_name': 'nmt_nfkc'},
}


def random_texts(seed=0):
  """Code points of all lengths in UTF-8, mixed with letters that have merges."""
  random = np.random.default_rng(seed)
  for highest in (0x80, 0x250, 0xd800, 0x20000):
    for _ in range(10):
      codes = random.integers(1, highest, 30)
      letters = [chr(code) for code in codes if not 0xd800 <= code < 0xe000]  # No surrogates.
      yield ''.join(letter + random.choice(['', ' the', 'er ', '  ']) for letter in letters)


@pytest.fixture
def auto(tmp_path):
  """A function that gives the files of a tokenizer to `transformers`."""
  def load(tokenizer):
    for name, content in (tokenizer.files() | {'config.json': b'{"model_type": "llama"}'}).items():
      (tmp_path / name).write_bytes(content)
    return quiet_transformers().AutoTokenizer.from_pretrained(tmp_path)
  return load


@pytest.fixture(params=['bytes', 'gpt2', *SENTENCEPIECE])
def tokenizer(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('tokenizer')
  if request.param == 'bytes':
    return load_tokenizer('bytes')
  if request.param == 'gpt2':
    return load_tokenizer(str(write_gpt2(folder)))
  return load_tokenizer(str(train_sentencepiece(folder, **SENTENCEPIECE[request.param])))


@pytest.mark.slow
def test_live_the_same_ids_in_transformers(tokenizer, auto):
  theirs = auto(tokenizer)
  assert (len(theirs), theirs.eos_token_id) == (tokenizer.vocab_size, tokenizer.end_id)
  special = [0, 1, 2] if tokenizer.name.startswith('sentencepiece') else [tokenizer.end_id]
  assert theirs.decode(special, skip_special_tokens=True) == ''
  for written in [*TEXTS, *random_texts()]:
    assert theirs.encode(written) == tokenizer.encode(written).tolist(), ascii(written)


@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2', 'llama', 'gemma', 'unigram'], indirect=True)
def test_live_the_same_text_in_transformers(tokenizer, auto):
  theirs = auto(tokenizer)
  for written in [*TEXTS, *random_texts()]:
    ids = tokenizer.encode(written)
    assert theirs.decode(ids) == tokenizer.decode(ids), ascii(written)


@pytest.mark.parametrize('tokenizer', ['bytes', 'gpt2'], indirect=True)
def test_live_broken_utf8_becomes_the_same_text(tokenizer, auto):
  theirs, random = auto(tokenizer), np.random.default_rng(0)
  for ids in random.integers(0, tokenizer.vocab_size, (300, 20)):
    assert theirs.decode(ids) == tokenizer.decode(ids)


def test_the_files_give_the_tokenizer_back(tokenizer, tmp_path):
  for name, content in tokenizer.files().items():
    (tmp_path / name).write_bytes(content)
  back = load_tokenizer(str(tmp_path))
  assert back[:3] == tokenizer[:3]
  assert back.encode(PROSE).tolist() == tokenizer.encode(PROSE).tolist()


@real
@pytest.mark.parametrize('name', ['', 'mistral_v1_32k.model'])
def test_live_real_tokenizers(name, auto):
  pytest.importorskip('sentencepiece')
  tokenizer = load_tokenizer(str(DATA / 'tokenizers' / name))
  theirs = auto(tokenizer)
  for file in ('english_valid.jsonl.xz', 'python_valid.jsonl.xz', 'tinyshakespeare.txt.xz'):
    assert theirs.encode(sample(file)) == tokenizer.encode(sample(file)).tolist()


@pytest.mark.parametrize('options', [
    {'model_type': 'char'}, {'user_defined_symbols': ['the']},
    {'treat_whitespace_as_suffix': True},
], ids=str)
def test_a_model_that_transformers_cannot_have(options, tmp_path):
  tokenizer = load_tokenizer(str(train_sentencepiece(tmp_path, **options)))
  with pytest.raises(InputError, match='transformers reads no such SentencePiece model'):
    tokenizer.files()


def test_bytes_saved_again_by_transformers_are_still_bytes(auto, tmp_path):
  auto(load_tokenizer('bytes')).save_pretrained(tmp_path)
  assert load_tokenizer(str(tmp_path)).name == 'bytes'
  whole = json.loads((tmp_path / 'tokenizer.json').read_text())
  whole['model'] |= {'vocab': whole['model']['vocab'] | {'ab': 257}, 'merges': [['a', 'b']]}
  (tmp_path / 'tokenizer.json').write_text(json.dumps(whole))
  assert load_tokenizer(str(tmp_path)).name != 'bytes'
