"""Any tokenizer.json gives the ids of `transformers`, and its settings are kept."""

import base64
import json
import lzma
import sys

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bornbiased_jax import files
from bornbiased_jax.data import load_tokenizer
from bornbiased_jax.errors import InputError
from directories import quiet_transformers
from small_tokenizers import (
  PROSE,
  UNICODE,
  assert_parts_have_the_ids_of_the_whole,
  train_sentencepiece,
  write_gpt2,
)

POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n'
TEXTS = [*UNICODE, '  two  spaces  ', '▁ ▁▁', 'ﬁ Å ①', "I'LL say: 1,234.5!", 'the theatre then']
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
BYTES = pre_tokenizers.ByteLevel.alphabet()
PIECES = [f'<0x{byte:02X}>' for byte in range(256)]


def byte_level(words):
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = words
  made.decoder = decoders.ByteLevel()
  return made, trainers.BpeTrainer(vocab_size=330, initial_alphabet=BYTES, show_progress=False,
                                   special_tokens=['<|endoftext|>', '<s>'])


def gpt2():
  return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3():
  return byte_level(pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(LLAMA3), 'isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def qwen2():
  made, trainer = llama3()
  made.normalizer = normalizers.NFC()
  return made, trainer


def unigram():
  made = tokenizers.Tokenizer(models.Unigram())
  made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(
      tokenizers.Regex(' {2,}'), ' ')])
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  made.decoder = decoders.Metaspace()
  return made, trainers.UnigramTrainer(vocab_size=150, unk_token='<unk>', show_progress=False,
                                       special_tokens=['<unk>', '<s>', '</s>'])


def llama2():
  """SentencePiece's BPE as the library has it: pieces for bytes; words only in training."""
  made = tokenizers.Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True))
  made.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
  made.pre_tokenizer = pre_tokenizers.Split('▁', 'merged_with_next')
  made.decoder = decoders.Sequence([
      decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(),
      decoders.Strip(' ', 1, 0)])
  return made, trainers.BpeTrainer(vocab_size=400, limit_alphabet=40, show_progress=False,
                                   special_tokens=['<unk>', '<s>', '</s>', *PIECES])


KINDS = {kind.__name__: kind for kind in (gpt2, llama3, qwen2, unigram, llama2)}


def write(folder, kind, config=None, template=True):
  """A folder as of a model, whose text begins with <s> by its template."""
  made, trainer = KINDS[kind]()
  made.train_from_iterator(PROSE.split('\n') * 20, trainer)
  if kind == 'llama2':
    made.pre_tokenizer = None
  made.add_tokens([tokenizers.AddedToken('theatre', normalized=False),
                   tokenizers.AddedToken('[INST]', special=True)])
  if template:
    made.post_processor = processors.TemplateProcessing('<s> $A', '<s> $A $B', [
        ('<s>', made.token_to_id('<s>'))])
  made.enable_truncation(5)
  made.enable_padding(length=50, pad_token='<s>')
  folder.mkdir(exist_ok=True)
  made.save(str(folder / 'tokenizer.json'))
  end = next(end for end in ('<|endoftext|>', '</s>') if made.token_to_id(end) is not None)
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'bos_token': '<s>',
            'eos_token': {'content': end, '__type': 'AddedToken'}} | (config or {})
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))
  (folder / 'config.json').write_text('{"model_type": "llama"}')
  return folder


def edited(path, change):
  """A tokenizer.json after a change of what it says."""
  spec = json.loads(path.read_text())
  change(spec)
  path.write_text(json.dumps(spec))
  return path


def transformers_of(folder):
  return quiet_transformers().AutoTokenizer.from_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize('config, template', [({}, True), ({'add_bos_token': False}, True),
                                              ({'add_bos_token': True}, False)], ids=str)
@pytest.mark.parametrize('kind', KINDS)
def test_ids_are_those_of_transformers(kind, template, config, tmp_path):
  folder = write(tmp_path, kind, config, template)
  tokenizer, theirs = load_tokenizer(str(folder)), transformers_of(folder)
  assert (tokenizer.vocab_size, tokenizer.end_id) == (len(theirs), theirs.eos_token_id)
  assert tokenizer.begin_ids == ((theirs.bos_token_id,) if template else ())
  for text in TEXTS:
    ids = tokenizer.encode(text).tolist()
    assert theirs.encode(text, split_special_tokens=True) == [*tokenizer.begin_ids, *ids]
    if '<' not in text:  # It spells no special token.
      assert theirs.encode(text) == [*tokenizer.begin_ids, *ids]
      assert tokenizer.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize('kind', KINDS)
def test_the_files_give_the_tokenizer_back(kind, tmp_path):
  """Here and in `transformers`."""
  assert_kept(load_tokenizer(str(write(tmp_path, kind))), tmp_path / 'copy')


ADDED = {'500': {'content': 'the cat', 'special': False}}


@pytest.mark.parametrize('kind, model_type, config, more, message', [
    ('gpt2', 'gpt2', dict(tokenizer_class='GPT2Tokenizer', add_prefix_space=True), {},
     'puts no space before a text, but .* says add_prefix_space=true'),
    ('llama2', 'llama', dict(tokenizer_class='LlamaTokenizer', add_prefix_space=False), {},
     'puts a space before a text, but .* says add_prefix_space=false'),
    ('llama3', 'llama', dict(added_tokens_decoder=ADDED), {}, "lacks token 'the cat', which"),
    ('qwen2', 'qwen2', {}, {'the cat': 500}, "lacks token 'the cat', which"),
])
def test_other_files_that_ask_for_other_ids(kind, model_type, config, more, message, tmp_path):
  folder, text = write(tmp_path, kind, config), 'and the cat'
  (folder / 'config.json').write_text(json.dumps({'model_type': model_type}))
  (folder / 'added_tokens.json').write_text(json.dumps(more))
  by_itself = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  by_itself.no_truncation()
  by_itself.no_padding()
  theirs = transformers_of(folder)
  assert theirs.encode(text, add_special_tokens=False) != by_itself.encode(
      text, add_special_tokens=False).ids
  with pytest.raises(InputError, match=message):
    load_tokenizer(str(folder))
  theirs.save_pretrained(tmp_path / 'again')  # As the message says.
  assert load_tokenizer(str(tmp_path / 'again')).encode(text).tolist() == theirs.encode(
      text, add_special_tokens=False)


def test_special_tokens_that_other_files_add_are_never_read(tmp_path):
  pad = {'500': {'content': '<pad>', 'special': True}}
  folder = write(tmp_path, 'llama3', dict(added_tokens_decoder=pad, pad_token='<fill>'))
  (folder / 'added_tokens.json').write_text('{"<pad>": 500, "<fill>": 501}')
  ids = load_tokenizer(str(folder)).encode('the <pad> cat').tolist()
  assert transformers_of(folder).encode('the <pad> cat', split_special_tokens=True,
                                        add_special_tokens=False) == ids


@pytest.mark.parametrize('begins', [True, False])
@pytest.mark.parametrize('make', [write_gpt2, train_sentencepiece])
def test_add_bos_token(make, begins, tmp_path):
  path = make(tmp_path)
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps({'add_bos_token': begins}))
  tokenizer = load_tokenizer(str(path))
  bos = tokenizer.end_id if make is write_gpt2 else 1
  assert tokenizer.begin_ids == ((bos,) if begins else ())
  assert_kept(tokenizer, tmp_path / 'copy')


def assert_kept(tokenizer, copy):
  copy.mkdir()
  for name, content in (tokenizer.files() | {'config.json': b'{"model_type": "llama"}'}).items():
    (copy / name).write_bytes(content)
  back, theirs = load_tokenizer(str(copy)), transformers_of(copy)
  assert back[:3] == tokenizer[:3] and back.begin_ids == tokenizer.begin_ids
  assert theirs.eos_token_id == tokenizer.end_id
  for text in (PROSE, 'the theatre'):
    assert back.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert theirs.encode(text) == [*tokenizer.begin_ids, *tokenizer.encode(text)]


def test_special_tokens_in_a_text_are_text(tmp_path):
  tokenizer = load_tokenizer(str(write(tmp_path, 'llama3')))
  ids = tokenizer.encode('<|endoftext|><s>[INST]')
  assert not {tokenizer.end_id, *tokenizer.begin_ids, tokenizer.vocab_size - 1} & {*ids.tolist()}
  assert tokenizer.decode(ids) == '<|endoftext|><s>[INST]'


@pytest.mark.parametrize('kind', ['gpt2', 'unigram', 'llama2'])
def test_parts_of_a_document_have_the_ids_of_the_whole(kind, tmp_path):
  tokenizer = load_tokenizer(str(write(tmp_path, kind)))
  assert_parts_have_the_ids_of_the_whole(tokenizer, PROSE.replace('theatre', 'theater'))


def test_gpt2_is_the_same_from_either_kind_of_file(tmp_path):
  """A corpus that was made with the two files is that of the tokenizer.json."""
  two = load_tokenizer(str(write_gpt2(tmp_path)))
  assert two.name == 'gpt2-3368a30bd146'  # As corpora have it that were made earlier.
  (tmp_path / 'whole').mkdir()
  whole = json.loads(two.files()['tokenizer.json'])
  for merges in (whole['model']['merges'], list(map(' '.join, whole['model']['merges']))):
    whole['model']['merges'] = merges
    (tmp_path / 'whole/tokenizer.json').write_text(json.dumps(whole))
    assert load_tokenizer(str(tmp_path / 'whole/tokenizer.json'))[:3] == two[:3]
  whole['pre_tokenizer']['add_prefix_space'] = True
  (tmp_path / 'whole/tokenizer.json').write_text(json.dumps(whole))
  assert load_tokenizer(str(tmp_path / 'whole')).name.startswith('tokenizers-')


@pytest.mark.parametrize('first', ['#version: 0.2\n', '#version: 1 by me\n', '',
                                   '#version: 0.2\r\n'])
def test_the_first_line_of_merges(first, tmp_path):
  wanted = load_tokenizer(str(write_gpt2(tmp_path)))
  merges = (tmp_path / 'vocab.bpe').read_text().removeprefix('#version: 0.2\n')
  end = '\r\n' if '\r' in first else '\n'
  (tmp_path / 'vocab.bpe').write_bytes((first + merges.replace('\n', end)).encode())
  assert load_tokenizer(str(tmp_path))[:3] == wanted[:3]


def test_sentencepiece_and_what_is_added_to_it(tmp_path):
  """tokenizer.json goes first, and has the name of the model that it was made of here."""
  model = train_sentencepiece(tmp_path)
  folder = tmp_path / 'model'
  folder.mkdir()
  for name, content in load_tokenizer(str(model)).files().items():
    (folder / name).write_bytes(content)
  assert load_tokenizer(str(folder))[:3] == load_tokenizer(str(model))[:3]
  made = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  made.add_special_tokens(['<|im_end|>'])
  made.save(str(folder / 'tokenizer.json'))
  (folder / 'tokenizer_config.json').write_text('{}')
  (folder / 'special_tokens_map.json').write_text('{"eos_token": "<|im_end|>"}')
  end = load_tokenizer(str(model)).vocab_size
  assert load_tokenizer(str(folder))[1:3] == (end + 1, end)


# What tokenizer.json says beside a tokenizer.model that says nothing of it.
CHANGES = {
    'no space before': lambda spec: spec['normalizer']['normalizers'].pop(0),
    'lower case': lambda spec: spec['normalizer']['normalizers'].insert(0, {'type': 'Lowercase'}),
    'compatible forms': lambda spec: spec['normalizer']['normalizers'].insert(0, {'type': 'NFKC'}),
    'other merges': lambda spec: spec['model']['merges'].sort(),
    'no bytes': lambda spec: spec['model'].update(byte_fallback=False),
    'digits': lambda spec: spec.update(pre_tokenizer={'type': 'Digits', 'individual_digits': True}),
}


@pytest.mark.parametrize('change', CHANGES)
def test_of_two_files_that_disagree_transformers_reads_tokenizer_json(change, tmp_path):
  folder, path = tmp_path / 'model', train_sentencepiece(tmp_path)
  folder.mkdir()
  model = load_tokenizer(str(path))
  for name, content in model.files().items():
    (folder / name).write_bytes(content)
  (folder / 'config.json').write_text('{"model_type": "llama"}')
  edited(folder / 'tokenizer.json', CHANGES[change])
  theirs, ours = transformers_of(folder), load_tokenizer(str(folder))
  texts = [*TEXTS, 'The theatre ﬁne 12345']
  assert [theirs.encode(text, split_special_tokens=True) for text in texts] == [
      ours.encode(text).tolist() for text in texts]
  assert any(ours.encode(text).tolist() != model.encode(text).tolist() for text in texts)


@pytest.mark.parametrize('content', [
    b'', b'junk', b''.join(b'%s %d\n' % (base64.b64encode(bytes([i])), i) for i in range(256))],
    ids=['empty', 'junk', 'tiktoken'])
def test_a_second_file_that_is_of_no_use_is_not_needed(content, tmp_path):
  folder = write(tmp_path, 'gpt2')
  wanted = load_tokenizer(str(folder))
  (folder / 'tokenizer.model').write_bytes(content)
  found = load_tokenizer(str(folder))
  assert found[:3] == wanted[:3] and found.encode(PROSE).tolist() == wanted.encode(PROSE).tolist()


def test_without_sentencepiece_tokenizer_json_is_read(tmp_path, monkeypatch):
  for name, content in load_tokenizer(str(train_sentencepiece(tmp_path))).files().items():
    (tmp_path / name).write_bytes(content)
  wanted = load_tokenizer(str(tmp_path)).encode(PROSE).tolist()
  monkeypatch.setitem(sys.modules, 'sentencepiece', None)
  assert load_tokenizer(str(tmp_path)).encode(PROSE).tolist() == wanted


@pytest.mark.parametrize('name, content, message', [
    ('tokenizer.json', '{', 'tokenizer.json is not a tokenizer.json, or damaged'),
    ('tokenizer.json', '[]', 'tokenizer.json is not a tokenizer.json, or damaged'),
    ('tokenizer.json', '{"model": 3}', 'tokenizer.json is not a tokenizer.json, or damaged'),
    ('tokenizer.json', '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["q", "q"]]}}',
     'tokenizer.json is not a tokenizer.json, or damaged'),
    ('tokenizer.json', '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
     "tokenizer.json has no token '<|endoftext|>' to end a document"),
    ('tokenizer.json', POINTER, 'tokenizer.json is a pointer of Git LFS'),
    ('tokenizer_config.json', '{', 'tokenizer_config.json is damaged'),
    ('special_tokens_map.json', '"ab"', 'special_tokens_map.json is damaged'),
    ('tokenizer_config.json', '{"eos_token": "<end>"}', "has no token '<end>' to end a document"),
    ('tokenizer_config.json', '{"eos_token": [1]}', "has no token '[1]' to end a document"),
])
def test_damage_is_one_line_that_names_the_file(name, content, message, tmp_path):
  folder = write(tmp_path, 'gpt2')
  (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
  if name == 'tokenizer.json':
    (folder / 'tokenizer_config.json').unlink()
  with pytest.raises(InputError) as error:
    load_tokenizer(str(folder))
  assert message in str(error.value)
  assert str(folder) in str(error.value)


@pytest.mark.parametrize('nested', [False, True])
def test_a_template_of_unknown_tokens_is_refused_before_the_library_panics(nested, tmp_path, capfd):
  def change(spec):
    template = spec['post_processor'] | {'special_tokens': {}}
    spec['post_processor'] = (
        {'type': 'Sequence', 'processors': [template]} if nested else template)

  path = edited(write(tmp_path, 'gpt2') / 'tokenizer.json', change)
  with pytest.raises(InputError, match="is damaged: its post_processor does not describe '<s>'"):
    load_tokenizer(str(path))
  assert not capfd.readouterr().err


@pytest.mark.parametrize('part, steps', [
    ('normalizer', [{'type': 'Replace', 'pattern': {'Regex': '.'}, 'content': 'a' * 10}] * 12),
    ('normalizer', [{'type': 'ByteLevel'}] * 40),
    ('decoder', [{'type': 'Replace', 'pattern': {'String': 'a'}, 'content': 'aaa'}] * 40),
])
def test_steps_that_make_a_text_too_long_are_refused_before_they_run(part, steps, tmp_path):
  def change(count):
    return lambda spec: spec.update({part: {'type': 'Sequence', f'{part}s': steps[:count]}})

  path = edited(write(tmp_path, 'gpt2') / 'tokenizer.json', change(1))
  load_tokenizer(str(path)).encode('aä')
  edited(path, change(len(steps)))
  with pytest.raises(InputError, match='its steps could make a text .* times as long'):
    load_tokenizer(str(path))


def test_a_panic_of_the_library_is_one_line(tmp_path):
  path = edited(write(tmp_path, 'gpt2') / 'tokenizer.json', lambda spec: spec.update(
      pre_tokenizer={'type': 'Split', 'pattern': {'Regex': '(x+x+)+y'}, 'behavior': 'Isolated',
                     'invert': False}))
  with pytest.raises(InputError, match='tokenizer.json has no tokens for some texts: .*Panic'):
    load_tokenizer(str(path)).encode('x' * 64)


def test_what_is_packed_is_unpacked_up_to_a_bound(tmp_path, monkeypatch):
  (tmp_path / 'vocab.json.xz').write_bytes(lzma.compress(bytes(10**6), preset=0))
  (tmp_path / 'merges.txt').write_text('a b\n')
  monkeypatch.setattr(files, '_LARGEST', 1000)
  with pytest.raises(InputError, match='vocab.json.xz holds more than 1000 bytes'):
    load_tokenizer(str(tmp_path))


def test_a_unigram_model_without_an_unknown_piece_reads_what_it_can(tmp_path):
  path = edited(write(tmp_path, 'unigram') / 'tokenizer.json',
                lambda spec: spec['model'].update(unk_id=None))
  with pytest.raises(InputError, match='tokenizer.json has no tokens for some texts: .*unk_id'):
    load_tokenizer(str(path))
  edited(path, lambda spec: spec['model']['vocab'].extend([['\n', -9.0], ['▁', -9.0]]))
  tokenizer = load_tokenizer(str(path))
  assert tokenizer.decode(tokenizer.encode('the theatre')) == 'the theatre'
  with pytest.raises(InputError, match='tokenizer.json has no tokens for some texts'):
    tokenizer.encode('\u4e00')
