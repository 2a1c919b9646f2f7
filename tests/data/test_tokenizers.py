"""Tokenizers give the ids of other implementations, and every mistake is told in one line."""

import json
import lzma
import sys

import numpy as np
import pytest

from bornbiased_jax.data import load_tokenizer, text
from bornbiased_jax.errors import InputError
from small_tokenizers import (
  DATA,
  PROSE,
  UNICODE,
  assert_parts_have_the_ids_of_the_whole,
  real,
  sample,
  train_sentencepiece,
  write_gpt2,
)


@pytest.fixture(scope='module')
def gpt2_folder(tmp_path_factory):
  return write_gpt2(tmp_path_factory.mktemp('gpt2'))


@pytest.fixture(scope='module')
def model_path(tmp_path_factory):
  """A small SentencePiece model of Llama's kind, trained here."""
  return train_sentencepiece(tmp_path_factory.mktemp('sentencepiece'))


def unpacked(path):
  content = path.read_bytes()
  return (lzma.decompress(content) if path.suffix == '.xz' else content).decode()


def transformers_gpt2(folder):
  transformers = pytest.importorskip('transformers')
  encoder, = folder.glob('*encoder.json*')
  merges, = folder.glob('*vocab.bpe*')
  pairs = [tuple(line.split()) for line in unpacked(merges).split('\n')[1:-1]]
  return transformers.GPT2Tokenizer(vocab=json.loads(unpacked(encoder)), merges=pairs)


def test_bytes():
  tokenizer = load_tokenizer('bytes')
  assert (tokenizer.name, tokenizer.vocab_size, tokenizer.end_id) == ('bytes', 257, 256)
  ids = tokenizer.encode(PROSE)
  assert ids.dtype == np.int32 and ids.tolist() == list(PROSE.encode())
  assert tokenizer.decode(ids[:-9]) == PROSE.encode()[:-9].decode(errors='replace')


@pytest.mark.parametrize('written', UNICODE, ids=ascii)
def test_round_trip(written, gpt2_folder, model_path):
  for name in ('bytes', str(gpt2_folder), str(model_path)):
    tokenizer = load_tokenizer(name)
    ids = tokenizer.encode(written)
    assert tokenizer.decode(ids) == written
    assert tokenizer.end_id not in ids
    ended = np.concatenate([ids, [tokenizer.end_id], tokenizer.encode('next'), [tokenizer.end_id]])
    assert tokenizer.decode(ended) == f'{written}<|endoftext|>next<|endoftext|>'


@pytest.mark.parametrize('wrong', [-1, 257])
def test_an_id_outside_the_vocabulary(wrong):
  message = f'^id {wrong} is not of tokenizer bytes, whose ids are 0 to 256$'
  with pytest.raises(InputError, match=message):
    load_tokenizer('bytes').decode([5, wrong])


def test_gpt2_equals_transformers(gpt2_folder):
  tokenizer, reference = load_tokenizer(str(gpt2_folder)), transformers_gpt2(gpt2_folder)
  for written in UNICODE[:-2] + [PROSE]:
    assert tokenizer.encode(written).tolist() == reference.encode(written)


@real
def test_the_real_gpt2_equals_transformers():
  folder = DATA / 'tokenizers'
  tokenizer, reference = load_tokenizer(str(folder)), transformers_gpt2(folder)
  assert (tokenizer.vocab_size, tokenizer.end_id) == (50257, 50256)
  assert tokenizer.encode('Hello world').tolist() == [15496, 995]
  samples = map(sample, ('wikitext2_valid.txt.xz', 'python_valid.jsonl.xz'))
  for written in [*UNICODE[:-2], PROSE, *samples]:
    assert tokenizer.encode(written).tolist() == reference.encode(written)


@real
def test_the_real_sentencepiece():
  """Some ids in Llama's style are known; bos 1 and eos 2 are never made from text."""
  pytest.importorskip('sentencepiece')
  tokenizer = load_tokenizer(str(DATA / 'tokenizers' / 'mistral_v1_32k.model'))
  assert (tokenizer.vocab_size, tokenizer.end_id) == (32000, 2)
  assert tokenizer.encode('Hello world').tolist() == [22557, 1526]
  written = sample('english_valid.jsonl.xz')
  assert tokenizer.decode(tokenizer.encode(written)) == written


def test_sentencepiece_is_what_the_package_says(model_path):
  sentencepiece = pytest.importorskip('sentencepiece')
  reference = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
  tokenizer = load_tokenizer(str(model_path))
  assert tokenizer.encode(PROSE).tolist() == reference.encode(PROSE)
  assert (tokenizer.vocab_size, tokenizer.end_id) == (reference.vocab_size(), reference.eos_id())


@pytest.mark.parametrize('options', [
    {}, {'add_dummy_prefix': False}, {'model_type': 'unigram'},
    {'normalization_rule_name': 'nmt_nfkc', 'remove_extra_whitespaces': True},
], ids=['llama', 'gemma', 'unigram', 't5'])
def test_parts_of_a_document_have_the_ids_of_the_whole(options, gpt2_folder, tmp_path):
  model = train_sentencepiece(tmp_path, **options)
  for name in (str(model), 'bytes', str(gpt2_folder)):
    assert_parts_have_the_ids_of_the_whole(load_tokenizer(name))


@real
@pytest.mark.parametrize('name', ['', 'mistral_v1_32k.model'])
def test_parts_of_real_text_have_the_ids_of_the_whole(name):
  tokenizer = load_tokenizer(str(DATA / 'tokenizers' / name))
  for file in ('wikitext2_valid.txt.xz', 'tinystories_v2_head.txt.xz', 'tinyshakespeare.txt.xz'):
    written = sample(file)
    cuts = [0, *(text.CUT.search(written, start).start() for start in range(500, 99_000, 500))]
    parts = [written[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]
    ids = [id_ for i, part in enumerate(parts) for id_ in tokenizer.encode(part, continues=i > 0)]
    assert ids == tokenizer.encode(written).tolist()


def test_gpt2_by_every_name(gpt2_folder, tmp_path):
  encoder, merges = gpt2_folder / 'encoder.json', gpt2_folder / 'vocab.bpe'
  (tmp_path / 'my_encoder.json.xz').write_bytes(lzma.compress(encoder.read_bytes()))
  (tmp_path / 'my_vocab.bpe.xz').write_bytes(lzma.compress(merges.read_bytes()))
  hub = tmp_path / 'hub'
  hub.mkdir()
  (hub / 'vocab.json').write_text(json.dumps(json.loads(encoder.read_text()), indent=1))
  (hub / 'merges.txt').write_bytes(merges.read_bytes())
  same = [load_tokenizer(name).name for name in (
      str(gpt2_folder), str(tmp_path), str(hub), f'{encoder},{merges}', f'{merges},{encoder}')]
  assert len(set(same)) == 1 and same[0].startswith('gpt2-')


def write(folder, name, content):
  (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
  return str(folder / name)


@pytest.mark.parametrize('make, message', [
    (lambda folder: 'words', "no tokenizer 'words': give 'bytes', a tokenizer.json"),
    (lambda folder: str(folder), 'has no tokenizer that can be read'),
    (lambda folder: str(folder / 'none.model'),
     'cannot read .*none.model: No such file'),
    (lambda folder: write(folder, 'a.model', b'junk'), 'a.model is not a SentencePiece model'),
    (lambda folder: f'{write(folder, "encoder.json.xz", lzma.compress(b"{}")[:-5])},b',
     'encoder.json.xz is cut short'),
])
def test_a_mistake_is_one_line(make, message, tmp_path):
  pytest.importorskip('sentencepiece')
  with pytest.raises(InputError, match=message):
    load_tokenizer(make(tmp_path))


@pytest.mark.parametrize('change', [
    lambda encoder, merges: ('[]', merges),
    lambda encoder, merges: ('{', merges),
    lambda encoder, merges: (json.dumps({**encoder, 'zzz': len(encoder)}), merges),
    lambda encoder, merges: (json.dumps({**encoder, 'the': 5}), merges),
    lambda encoder, merges: (json.dumps({**encoder, 'the': 'five'}), merges),
    lambda encoder, merges: (json.dumps(encoder).replace('<|endoftext|>', '<|end|>'), merges),
    lambda encoder, merges: (json.dumps(encoder), 'q q\n' + merges),
    lambda encoder, merges: (json.dumps(encoder), merges.replace('t h\nth e', 'th e\nt h')),
    lambda encoder, merges: (json.dumps(encoder), b'\xff'),
])
def test_files_that_do_not_belong_together(change, gpt2_folder, tmp_path):
  encoder, merges = change(json.loads((gpt2_folder / 'encoder.json').read_text()),
                           (gpt2_folder / 'vocab.bpe').read_text())
  write(tmp_path, 'encoder.json', encoder)
  write(tmp_path, 'vocab.bpe', merges)
  with pytest.raises(InputError, match="are not GPT-2's encoder.json and vocab.bpe"):
    load_tokenizer(str(tmp_path))


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'sentencepiece', None)
  with pytest.raises(InputError, match="needs sentencepiece: pip install 'bornbiased_jax"):
    load_tokenizer(write(tmp_path, 'a.model', b''))
