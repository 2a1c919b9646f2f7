"""Tokenizers as files: what `transformers.AutoTokenizer` reads, and what `load_tokenizer` does.

    tokenizer.json          the tokenizer, in the format of the library `tokenizers`
    tokenizer_config.json   its class, and the token that ends a document
    tokenizer.model         SentencePiece's own file

A text gets the same ids from both, unless it spells a special token, such as </s> or
<|endoftext|>. `transformers` reads these as that token, while here they are text.
"""

import importlib
import json
import math
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from bornbiased_jax.errors import InputError, show

END_OF_DOCUMENT = '<|endoftext|>'
# What stands for a space in front of a word.
_SPACES = 'Ġ', '▁'
# Where the steps of a tokenizer.json are, and how many times longer some make a text.
_STEPS = ('normalizer', 'pre_tokenizer', 'post_processor', 'decoder', 'normalizers',
          'pretokenizers', 'processors', 'decoders')
_GROWTH = {'ByteLevel': 2, 'Precompiled': 32}
# What model_type and the type of a subword mean in a SentencePiece model.
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def of_bytes() -> dict[str, bytes]:
  """The files of the tokenizer 'bytes': GPT-2's alphabet, and no merges."""
  return with_config(_byte_level(_bytes_vocabulary(), merges=[], in_words=False), END_OF_DOCUMENT)


def is_of_bytes(spec: dict[str, Any]) -> bool:
  """Whether a valid tokenizer.json describes the tokenizer 'bytes'."""
  return spec['model']['vocab'] == _bytes_vocabulary() and not spec['model']['merges']


def join_gpt2(encoder: bytes, merges: bytes, begins: bool) -> bytes:
  """The tokenizer.json of GPT-2's BPE, from its two files; every text has BOS if `begins`."""
  lines = [line for line in merges.decode().replace('\r\n', '\n').split('\n') if line]
  if lines and lines[0].startswith('#version'):
    del lines[0]
  merged = [tuple(line.split(' ')) for line in lines]
  return _byte_level(json.loads(encoder), merged, in_words=True, begins=begins)


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
                     'ones with spaces before words and without user-defined subwords')
  made = tokenizers.Tokenizer(_bpe(model) if trainer.model_type == _BPE else _unigram(model))
  made.normalizer = normalizers.Sequence(_normalizers(normalizer))
  made.decoder = decoders.Sequence(_decoders(normalizer))
  special = [piece.piece for piece in model.pieces if piece.type in (_UNKNOWN, _CONTROL)]
  finished = _finish(made, special, model.pieces[trainer.bos_id].piece if begins else None)
  return with_config(finished, model.pieces[trainer.eos_id].piece,
                     add_bos_token=begins) | {'tokenizer.model': content}


def with_config(tokenizer: bytes, end: str, **settings: bool) -> dict[str, bytes]:
  """A tokenizer.json, and the tokenizer_config.json with which `transformers` reads it."""
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': end,
            'clean_up_tokenization_spaces': False,
            'model_input_names': ['input_ids', 'attention_mask'], **settings}
  content = json.dumps(config, indent=1, ensure_ascii=False) + '\n'
  return {'tokenizer.json': tokenizer, 'tokenizer_config.json': content.encode()}


def _bytes_vocabulary():
  return gpt2_alphabet() | {END_OF_DOCUMENT: 256}


def _byte_level(vocabulary, merges, in_words, begins=False):
  """A BPE over bytes; with `in_words` it never merges over the bounds of GPT-2's words."""
  made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, trim_offsets=False, use_regex=in_words)
  made.decoder = decoders.ByteLevel()
  return _finish(made, [END_OF_DOCUMENT], END_OF_DOCUMENT if begins else None)


def _finish(made, special, begin):
  """The content of tokenizer.json, with its special tokens, and what begins every text."""
  made.add_special_tokens(special)
  if begin is not None:
    made.post_processor = processors.TemplateProcessing(
        [begin, '$A'], [begin, '$A', '$B'], [(begin, made.token_to_id(begin))])
  return (made.to_str(pretty=True) + '\n').encode()


def undescribed_tokens(processor: dict[str, Any]) -> set[str]:
  """Tokens that a post_processor names without saying their ids, at which the library panics."""
  if 'processors' in processor:
    return set().union(*map(undescribed_tokens, processor['processors']))
  pieces = [piece.get('SpecialToken', {}) for piece in processor.get('single', ())]
  return {piece['id'] for piece in pieces if piece} - {*processor.get('special_tokens', {})}


def disagreement(made: tokenizers.Tokenizer, settings: dict[str, Any]) -> str | None:
  """Why other files in its folder ask for other ids than a tokenizer.json gives, if they do.

  It depends on the class of the tokenizer, and on its version, which one `transformers` follows.
  """
  first = made.encode('a', add_special_tokens=False).tokens[:1]
  adds, wanted = bool(first and first[0].startswith(_SPACES)), settings.get('add_prefix_space')
  marks_words = any(token.startswith(_SPACES) for token in made.get_vocab())
  if marks_words and wanted is (not adds):
    return (f'puts {"a" if adds else "no"} space before a text, but tokenizer_config.json says '
            f'add_prefix_space={str(wanted).lower()}')
  added = settings.get('added_tokens_decoder')
  each = [token for token in dict(added or {}).values() if isinstance(token, dict)]
  # Those that are special are never read in a text here.
  special = str([token for token in each if token.get('special') is True] + [
      value for name, value in settings.items() if name.endswith(('_token', '_tokens'))])
  asked = [str(token.get('content')) for token in each] + [*settings.get('added_tokens.json', ())]
  missing = next((name for name in asked
                  if made.token_to_id(name) is None and repr(name) not in special), None)
  return missing and f'lacks token {show(missing)}, which other files in its folder add'


def growth(step: Any) -> int:
  """How many times as long a text may get by the steps of a tokenizer.json, at most or about."""
  if not isinstance(step, dict):
    return 1
  inner = [part for name in _STEPS for part in (step[name] if isinstance(step.get(name), list)
                                                else [step.get(name)])]
  own = max(_GROWTH.get(str(step.get('type')), 1), len(step.get('content') or ''),
            sum('Sequence' in piece for piece in step.get('single', ())))
  return own * math.prod(map(growth, inner))


def _normalizers(spec) -> list[normalizers.Normalizer]:
  """What is done to a text before it is cut: SentencePiece writes spaces as ▁."""
  steps: list[normalizers.Normalizer] = []
  if 'nfkc' in spec.name:
    # By itself 'Precompiled' reads one grapheme at a time and loses accents that stand apart.
    steps.append(normalizers.NFKC())
  if spec.precompiled_charsmap:
    steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
  if spec.remove_extra_whitespaces:
    steps.append(normalizers.Replace(Regex(r'\A +| +\z|(?<= ) +'), ''))
  if spec.add_dummy_prefix:
    steps.append(normalizers.Prepend('▁'))
  return [*steps, normalizers.Replace(' ', '▁')]


def _decoders(spec) -> list[decoders.Decoder]:
  steps = [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()]
  return [*steps, decoders.Strip(' ', 1, 0)] if spec.add_dummy_prefix else steps


def _unigram(model):
  spec = model.trainer_spec
  pieces = [(piece.piece, piece.score) for piece in model.pieces]
  return models.Unigram(pieces, spec.unk_id, spec.byte_fallback)


def _bpe(model):
  spec = model.trainer_spec
  return models.BPE(
      {piece.piece: i for i, piece in enumerate(model.pieces)}, _merges(model.pieces),
      unk_token=model.pieces[spec.unk_id].piece, fuse_unk=True, byte_fallback=spec.byte_fallback)


def _merges(pieces):
  """All pairs of subwords that make a subword, in the order in which SentencePiece merges them.

  It makes the subword of the highest score, first where it can be made furthest to the left,
  which is where the left part has grown already.
  """
  score = {piece.piece: piece.score for piece in pieces if piece.type == _NORMAL}
  pairs = [(whole[:cut], whole[cut:]) for whole in score for cut in range(1, len(whole))]
  made = [pair for pair in pairs if pair[0] in score and pair[1] in score]
  return sorted(made, key=lambda pair: (-score[''.join(pair)], -len(pair[0])))
