"""Tokenizers as files: what `transformers.AutoTokenizer` reads, and what `load_tokenizer` does.

    tokenizer.json          the tokenizer, in the format of the library `tokenizers`
    tokenizer_config.json   its class, and the token that ends a document
    tokenizer.model         SentencePiece's own file

A text gets the same ids from both, unless it spells a special token, such as </s> or
<|endoftext|>. `transformers` reads these as that token, while here they are text.
"""

import base64
import importlib
import json
from typing import Any

from bornbiased_jax.errors import InputError

END_OF_DOCUMENT = '<|endoftext|>'
# What model_type and the type of a piece mean in a SentencePiece model.
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def of_bytes() -> dict[str, bytes]:
  """The files of the tokenizer 'bytes': GPT-2's alphabet, and no merges."""
  return with_config(_as_json(_byte_level(_bytes_vocabulary(), merges=[], in_words=False)),
                     END_OF_DOCUMENT)


def is_of_bytes(spec: dict[str, Any]) -> bool:
  """Whether a valid tokenizer.json is that of the tokenizer 'bytes'."""
  return spec['model']['vocab'] == _bytes_vocabulary() and not spec['model']['merges']


def join_gpt2(encoder: bytes, merges: bytes, begins: bool) -> bytes:
  """The tokenizer.json of GPT-2's BPE, from its two files; every text has BOS if `begins`."""
  lines = [line for line in merges.decode().replace('\r\n', '\n').split('\n') if line]
  if lines and lines[0].startswith('#version'):
    del lines[0]
  vocab = json.loads(encoder)
  tokenizer = _byte_level(vocab, [line.split(' ') for line in lines], in_words=True)
  if begins:
    tokenizer['post_processor'] = _template(END_OF_DOCUMENT, vocab[END_OF_DOCUMENT])
  return _as_json(tokenizer)


def gpt2_tokens(spec: dict[str, Any]) -> list[bytes]:
  """GPT-2's tokens by their ids, without that which ends a document; none if it is not GPT-2's."""
  model, words = spec['model'], spec.get('pre_tokenizer') or {}
  vocab, byte_of = dict(model['vocab']), gpt2_alphabet()
  if (words.get('type') != 'ByteLevel' or words['add_prefix_space']
      or not words.get('use_regex', True) or spec.get('normalizer')
      or [token['content'] for token in spec['added_tokens']] != [END_OF_DOCUMENT]
      or sorted(vocab.values()) != list(range(len(vocab)))):
    return []
  del vocab[END_OF_DOCUMENT]
  # A merge is a list of two tokens, or in older files both with a space between them.
  merged = [''.join(merge).replace(' ', '') for merge in model['merges']]
  ids = [vocab.get(token, -1) for token in merged]
  if ids != sorted(ids) or vocab.keys() != {*byte_of, *merged}:
    return []
  in_order = sorted(vocab, key=vocab.__getitem__)
  return [bytes(byte_of[letter] for letter in token) for token in in_order]


def gpt2_alphabet() -> dict[str, int]:
  """The byte that each letter in GPT-2's files stands for. Printable bytes stand for themselves."""
  printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != ' ']
  others = sorted(set(range(256)) - set(printable))
  themselves = {chr(byte): byte for byte in printable}
  return themselves | {chr(256 + i): byte for i, byte in enumerate(others)}


def of_sentencepiece(content: bytes, begins: bool) -> dict[str, bytes]:
  """The files of a SentencePiece model, from its own; every text has BOS if `begins`."""
  # Imported here, because only these tokenizers need it.
  format_: Any = importlib.import_module('sentencepiece.sentencepiece_model_pb2')
  model = format_.ModelProto.FromString(content)
  trainer, normalizer = model.trainer_spec, model.normalizer_spec
  if (trainer.model_type not in (_UNIGRAM, _BPE) or trainer.treat_whitespace_as_suffix
      or not normalizer.escape_whitespaces
      or any(piece.type == _USER_DEFINED for piece in model.pieces)):
    raise InputError('transformers reads no such SentencePiece model, but only BPE and unigram '
                     'ones with spaces before words and without user-defined pieces')
  tokenizer = {
      'version': '1.0',
      'added_tokens': [_added(i, piece.piece) for i, piece in enumerate(model.pieces)
                       if piece.type in (_UNKNOWN, _CONTROL)],
      'normalizer': {'type': 'Sequence', 'normalizers': _normalizers(normalizer)},
      'decoder': {'type': 'Sequence', 'decoders': _decoders(normalizer)},
      'model': _bpe(model) if trainer.model_type == _BPE else _unigram(model)}
  if begins:
    tokenizer['post_processor'] = _template(model.pieces[trainer.bos_id].piece, trainer.bos_id)
  return with_config(_as_json(tokenizer), model.pieces[trainer.eos_id].piece,
                     add_bos_token=begins) | {'tokenizer.model': content}


def with_config(tokenizer: bytes, end: str, **settings: bool) -> dict[str, bytes]:
  """A tokenizer.json, and the tokenizer_config.json with which `transformers` reads it."""
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': end,
            'clean_up_tokenization_spaces': False,
            'model_input_names': ['input_ids', 'attention_mask'], **settings}
  return {'tokenizer.json': tokenizer, 'tokenizer_config.json': _as_json(config)}


def _as_json(content):
  return (json.dumps(content, indent=1, ensure_ascii=False) + '\n').encode()


def _bytes_vocabulary():
  return gpt2_alphabet() | {END_OF_DOCUMENT: 256}


def _byte_level(vocabulary, merges, in_words):
  """A BPE over bytes; with `in_words` it never merges over the bounds of GPT-2's words."""
  spaces = {'add_prefix_space': False, 'trim_offsets': False}
  return {
      'version': '1.0',
      'added_tokens': [_added(vocabulary[END_OF_DOCUMENT], END_OF_DOCUMENT)],
      'pre_tokenizer': {'type': 'ByteLevel', 'use_regex': in_words, **spaces},
      'decoder': {'type': 'ByteLevel', 'use_regex': in_words, **spaces},
      'model': {'type': 'BPE', 'vocab': vocabulary, 'merges': merges}}


def _template(begin, id_):
  """What the library puts before a text, and before the first of a pair."""
  token = {'SpecialToken': {'id': begin, 'type_id': 0}}
  first, second = ({'Sequence': {'id': name, 'type_id': 0}} for name in 'AB')
  return {'type': 'TemplateProcessing', 'single': [token, first], 'pair': [token, first, second],
          'special_tokens': {begin: {'id': begin, 'ids': [id_], 'tokens': [begin]}}}


def undescribed_tokens(processor: dict[str, Any]) -> set[str]:
  """Tokens that a post_processor names without saying their ids, at which the library panics."""
  if 'processors' in processor:
    return set().union(*map(undescribed_tokens, processor['processors']))
  pieces = [piece.get('SpecialToken', {}) for piece in processor.get('single', ())]
  return {piece['id'] for piece in pieces if piece} - {*processor.get('special_tokens', {})}


def _added(id_, content):
  return {'id': id_, 'content': content, 'special': True, 'single_word': False,
          'lstrip': False, 'rstrip': False, 'normalized': False}


def _normalizers(spec) -> list[dict[str, Any]]:
  """What is done to a text before it is cut: SentencePiece writes spaces as ▁."""
  steps: list[dict[str, Any]] = []
  if 'nfkc' in spec.name:
    # Alone, 'Precompiled' reads one grapheme at a time and loses accents that stand apart.
    steps.append({'type': 'NFKC'})
  if spec.precompiled_charsmap:
    charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
    steps.append({'type': 'Precompiled', 'precompiled_charsmap': charsmap})
  if spec.remove_extra_whitespaces:
    steps.append(_replace({'Regex': r'\A +| +\z|(?<= ) +'}, ''))
  if spec.add_dummy_prefix:
    steps.append({'type': 'Prepend', 'prepend': '▁'})
  return [*steps, _replace({'String': ' '}, '▁')]


def _decoders(spec) -> list[dict[str, Any]]:
  steps = [_replace({'String': '▁'}, ' '), {'type': 'ByteFallback'}, {'type': 'Fuse'}]
  if spec.add_dummy_prefix:
    steps.append({'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0})
  return steps


def _replace(pattern, content) -> dict[str, Any]:
  return {'type': 'Replace', 'pattern': pattern, 'content': content}


def _unigram(model):
  return {'type': 'Unigram', 'vocab': [[piece.piece, piece.score] for piece in model.pieces],
          'unk_id': model.trainer_spec.unk_id, 'byte_fallback': model.trainer_spec.byte_fallback}


def _bpe(model):
  spec = model.trainer_spec
  return {'type': 'BPE', 'vocab': {piece.piece: i for i, piece in enumerate(model.pieces)},
          'merges': _merges(model.pieces), 'unk_token': model.pieces[spec.unk_id].piece,
          'fuse_unk': True, 'byte_fallback': spec.byte_fallback}


def _merges(pieces):
  """All pairs of pieces that make a piece, in the order in which SentencePiece merges them.

  It makes the piece of the highest score, first where it can be made furthest to the left,
  which is where the left part has grown already.
  """
  score = {piece.piece: piece.score for piece in pieces if piece.type == _NORMAL}
  pairs = [(whole[:cut], whole[cut:]) for whole in score for cut in range(1, len(whole))]
  made = [pair for pair in pairs if pair[0] in score and pair[1] in score]
  return sorted(made, key=lambda pair: (-score[''.join(pair)], -len(pair[0])))
