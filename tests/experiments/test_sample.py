"""The program that continues a text: every kind of network and tokenizer, and mistakes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import storage
from bornbiased_jax.data import corpus, load_tokenizer
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import sample
from bornbiased_jax.storage import checkpoint, huggingface
from experiments.sample import Settings, continued, main
from experiments.shared.settings import resolve
import small_hub
from small_networks import LLAMA, save_run, trained
from small_tokenizers import train_sentencepiece, write_gpt2
import tiny_runs

KEY = jax.random.key(0)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Two checkpoints as of a training on bytes."""
  directory, text = tmp_path_factory.mktemp('run'), corpus.load('tinyshakespeare')
  config = dataclasses.replace(tiny_runs.CONFIG, vocab_size=text.vocab_size)
  made = tiny_runs.run(directory, config=config, data=text)
  writer = checkpoint.Writer(made.directories[0])
  for step in (0, 3):
    writer.save(step, trained(config, 1 + step), {'count': jnp.zeros(3)}, made.metadata(3, None))
  writer.close()
  return str(made.directories[0])


def as_text(ids):
  return b''.join(b'<|endoftext|>' if id_ == 256 else bytes([id_])
                  for id_ in ids).decode(errors='replace')


@pytest.mark.slow
@pytest.mark.parametrize('step', [None, 0])
def test_a_run_goes_on_in_bytes(run, step):
  config, params = checkpoint.load_params(run, step)
  prompt = list('naïve'.encode())
  added, = np.asarray(sample(config, params, np.array([prompt]), 60, jax.random.key(5), 1.5))
  written = continued(run if step is None else f'{run}@{step}', 'naïve', 60, 1.5, 5)
  assert written == as_text([*prompt, *added]) and '\ufffd' in written
  assert written != continued(run, 'naïve', 60, 1.5, 6)


def test_an_empty_prompt_begins_a_document(run, capsys):
  config, params = checkpoint.load_params(run)
  added, = np.asarray(sample(config, params, np.array([[256]]), 10, KEY))
  main(resolve(Settings, words=[run], num_tokens='10'))
  assert capsys.readouterr() == (as_text([256, *added]) + '\n', '')


@pytest.mark.parametrize('kind', ['bytes', 'sentencepiece', 'gpt2'])
def test_a_directory_brings_its_tokenizer(kind, tmp_path):
  """Its text is that of the ids below the tokenizer's vocabulary."""
  if kind == 'gpt2':
    pytest.importorskip('tiktoken')
  config = dataclasses.replace(LLAMA, vocab_size=1000)
  name = {'gpt2': write_gpt2, 'sentencepiece': train_sentencepiece, 'bytes': lambda _: 'bytes'}
  tokenizer = load_tokenizer(str(name[kind](tmp_path)))
  huggingface.save(tmp_path / 'model', config, trained(config, 1), tokenizer)
  prompt = tokenizer.encode('over the')
  added, = np.asarray(sample(config, trained(config, 1), prompt[None], 20, KEY,
                             num_ids=tokenizer.vocab_size))
  written = continued(str(tmp_path / 'model'), 'over the', 20)
  assert written == tokenizer.decode([*prompt, *added]) and written.startswith('over the')


def test_a_text_begins_as_the_tokenizer_says(tmp_path):
  config = dataclasses.replace(LLAMA, vocab_size=1000)
  params = trained(config, 1)
  (tmp_path / 'tokenizer_config.json').write_text('{"add_bos_token": true}')
  tokenizer = load_tokenizer(str(write_gpt2(tmp_path)))
  huggingface.save(tmp_path / 'model', config, params, tokenizer)
  prompt = np.array([[tokenizer.end_id, *tokenizer.encode('the')]])
  added, = np.asarray(sample(config, params, prompt, 20, KEY, num_ids=tokenizer.vocab_size))
  assert continued(str(tmp_path / 'model'), 'the', 20) == 'the' + tokenizer.decode(added)


def test_a_text_begins_as_the_run_was_trained(tmp_path, capsys):
  config = dataclasses.replace(LLAMA, vocab_size=257)
  params = trained(config, 1)
  save_run(tmp_path / 'run', 0, config, params, data=dict(tokenizer='bytes'),
           recipe=dict(start_id=7))
  added, = np.asarray(sample(config, params, np.array([[7, 97]]), 20, KEY, num_ids=257))
  assert continued(str(tmp_path / 'run'), 'a', 20) == 'a' + as_text(added)
  assert capsys.readouterr().err == 'the text begins with id 7 (run)\n'
  with pytest.raises(InputError, match=r'--start_id: 8, but .*run begin with 7 \(run\)'):
    continued(str(tmp_path / 'run'), 'a', 20, start_id=8)


def test_where_neither_run_nor_tokenizer_says_it_a_flag_begins_a_text(run, capsys):
  config, params = checkpoint.load_params(run)
  added, = np.asarray(sample(config, params, np.array([[7, 97]]), 20, KEY))
  assert continued(run, 'a', 20, start_id=7) == 'a' + as_text(added)
  assert capsys.readouterr().err == 'the text begins with id 7 (--start_id)\n'


def test_a_model_of_the_hub_brings_its_tokenizer(tmp_path, monkeypatch):
  """Offline, with no more than what its cache has."""
  pytest.importorskip('huggingface_hub')
  config = dataclasses.replace(LLAMA, vocab_size=1000)
  path = tmp_path / 'model'
  huggingface.save(path, config, trained(config, 1), load_tokenizer('bytes'))
  small_hub.lay(tmp_path / 'cache', 'org/model', path)
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  assert continued('org/model', 'over the', 20) == continued(str(path), 'over the', 20)


def test_ids_without_a_tokenizer():
  config, params = storage.open('tiny_gpt2:3').load()
  added, = np.asarray(sample(config, params, np.array([[5, 7]]), 6, KEY, temperature=0))
  written = continued('tiny_gpt2:3', '5 7', 6, temperature=0.0, tokenizer='none')
  assert written.split() == ['5', '7', *map(str, added)]
  assert max(added) > 256


@pytest.mark.parametrize('name, given, named', [
    ('nowhere', {}, 'nowhere'), ('tiny_gpt2:1', {}, '--tokenizer'),
    ('tiny_gpt2:1', dict(tokenizer='words'), '--tokenizer'),
    ('tiny_gpt2:1', dict(tokenizer='none'), '--prompt'),
    ('tiny_gpt2:1', dict(tokenizer='none', prompt='5 2048'), '--prompt'),
    ('tiny_gpt2:1', dict(tokenizer='none', prompt='a'), '--prompt'),
])
def test_wrong_input_is_named(name, given, named):
  with pytest.raises(InputError, match=f'^{named}: '):
    continued(name, **given)


def test_the_tokenizer_must_be_that_of_the_network(run, tmp_path):
  pytest.importorskip('tiktoken')
  gpt2 = load_tokenizer(str(write_gpt2(tmp_path)))
  with pytest.raises(InputError, match=f'--tokenizer: .* with bytes, and this is {gpt2.name}$'):
    continued(run, tokenizer=str(tmp_path))
  small = dataclasses.replace(LLAMA, vocab_size=70)
  huggingface.save(tmp_path / 'model', small, trained(small, 1))
  with pytest.raises(InputError, match='^--tokenizer: .*model has no tokenizer that can be read'):
    continued(str(tmp_path / 'model'))
  with pytest.raises(InputError, match="--prompt: 'zoo' has id 122 .* model has only 70 ids"):
    continued(str(tmp_path / 'model'), 'zoo', tokenizer='bytes')
  save_run(tmp_path / 'other', 0, small, trained(small, 1), data=dict(tokenizer=gpt2.name))
  with pytest.raises(InputError, match=f'of .*other is {gpt2.name}; give'):
    continued(str(tmp_path / 'other'))


@pytest.mark.parametrize('words', [[], ['a', 'To be']])
def test_one_network_is_continued(words):
  with pytest.raises(InputError, match='give one model'):
    main(resolve(Settings, words=words))


def test_a_prompt_is_text():
  with pytest.raises(InputError, match='^--prompt: '):
    resolve(Settings, words=['tiny_gpt2:1'], prompt='\udcff')  # As Python reads a byte 0xff.
