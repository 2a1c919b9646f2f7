"""Models of the Hugging Face Hub: what is fetched, and what is said if it is not."""

import json
import sys
from types import SimpleNamespace

import pytest

from bornbiased_jax import storage
from bornbiased_jax.errors import InputError
from bornbiased_jax.storage import hub, huggingface
from bornbiased_jax.storage.digests import digest
from directories import GOLDENS
from experiments.seedprint import __main__ as seedprint
from experiments.shared.settings import resolve as resolve_settings
import small_hub
from small_hub import COMMIT

pytest.importorskip('huggingface_hub')
from huggingface_hub import errors  # noqa: E402

SHARDS = 'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'
INDEX = 'model.safetensors.index.json'
TOKENIZER = 'tokenizer.json', 'merges.txt', 'tokenizer_config.json', 'special_tokens_map.json'
# Nothing of this is ever wanted.
REST = {name: b'0' * 99 for name in (
    'pytorch_model.bin', 'consolidated.safetensors', 'model.fp16.safetensors', 'modeling_own.py',
    'onnx/model.onnx', 'README.md', 'training_args.bin')}


def content(golden, **changes):
  """The files of a golden directory, with others beside or in place of them."""
  files = {path.name: path.read_bytes() for path in (GOLDENS / golden).iterdir()}
  return {name: value for name, value in (files | REST | changes).items() if value is not None}


def index_of(shard):
  return json.dumps({'weight_map': {'a': shard}}).encode()


def refused(kind, words='no'):
  return kind(words, response=SimpleNamespace(headers={}, request=None))


REPOS = {
    'org/whole': content('pythia', **dict.fromkeys(TOKENIZER, b'{}')),
    'org/sharded': content('llama_tied_sharded'),
    'org/pickled': content('pythia', **{'model.safetensors': None}),
    'org/hostile': content('llama_tied_sharded', **{INDEX: index_of('../../evil')}),
    'org/shardless': content('llama_tied_sharded', **{SHARDS[1]: None}),
    'org/mamba': content('pythia', **{'config.json': b'{"model_type": "mamba"}'}),
    'org/empty': {'README.md': b'0'},
    'org/absent': refused(errors.RepositoryNotFoundError),
    'org/gated': refused(errors.GatedRepoError),
    'org/branch': refused(errors.RevisionNotFoundError),
    'org/teapot': refused(errors.HfHubHTTPError, '418\nis a teapot'),
    'org/silent': OSError(),
    'org/away': errors.LocalEntryNotFoundError('Got: ConnectError'),
}


@pytest.fixture
def download(tmp_path, monkeypatch):
  stand_in = small_hub.Download(tmp_path / 'cache', REPOS)
  monkeypatch.setattr('huggingface_hub.snapshot_download', stand_in)
  return stand_in


@pytest.fixture
def offline(tmp_path, monkeypatch):
  """A cache that is all that `huggingface_hub` may use."""
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  return tmp_path


def golden_digest(name):
  return digest(huggingface.load(GOLDENS / name)[1])


@pytest.mark.parametrize('name, expected', [
    ('org/model', True), ('org/model@v1', True), ('org/model@refs/pr/1', True),
    ('EleutherAI/pythia-70m@step3000', True), ('outputs/typo@100', True),
    ('tests/typo', False),
    ('model', False), ('model@v1', False), ('./org/model', False), ('/org/model', False),
    ('org/model/', False), ('org/model/part', False), ('../model', False), ('org/..', False),
    ('org/model@', False), ('org/model@../x', False), ('org/model@/x', False), ('a/b--c', False),
    ('tiny_gpt2:1', False), ('org/model\n', False), ('', False),
])
def test_names(name, expected):
  assert hub.is_name(name) == expected


def test_a_folder_comes_first(download, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)

  def found(name):
    model = storage.open(name)
    return model.kind, model.place, model.number

  assert found('org/whole') == ('hub', f'org/whole@{COMMIT}', None)
  (tmp_path / 'org').mkdir()
  (tmp_path / 'org' / 'whole').symlink_to(GOLDENS / 'pythia')
  assert found('org/whole') == ('transformers', 'org/whole', None)
  assert found('org/whole@7') == ('run', 'org/whole', 7)
  with pytest.raises(InputError, match="org/whole is a folder here, and 'v1' no step of it"):
    storage.open('org/whole@v1')
  # A misspelt path is asked of nobody outside.
  with pytest.raises(InputError, match=r'org/whloe: no such model \(did you mean org/whole\?\)'):
    storage.open('org/whloe')


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(InputError) as error:
    storage.open('outputs/typo').load()
  assert "pip install 'bornbiased_jax[hub]'" in str(error.value)


def test_a_cache_is_enough_offline(offline):
  """With the real `huggingface_hub`; what is not there is named."""
  small_hub.lay(offline, 'org/whole', GOLDENS / 'pythia')
  small_hub.lay(offline, 'org/sharded', GOLDENS / 'llama_tied_sharded', branch='v1')
  small_hub.lay(offline, 'org/part', GOLDENS / 'pythia', ['config.json'])
  for name, golden in (('org/whole', 'pythia'), (f'org/whole@{COMMIT}', 'pythia'),
                       ('org/sharded@v1', 'llama_tied_sharded')):
    assert digest(storage.open(name).load()[1]) == golden_digest(golden)
  for name in ('org/whole', f'org/whole@{COMMIT}'):
    assert storage.open(name).place == f'org/whole@{COMMIT}'
  for name in ('org/sharded', 'org/absent'):
    with pytest.raises(InputError, match=f'^{name}: .* HF_HUB_OFFLINE keeps it from being'):
      storage.open(name).load()
  with pytest.raises(InputError, match=f'^org/part@{COMMIT} .* or in its cache here, has no model'):
    storage.open('org/part').load()


def test_only_wanted_files_are_fetched(download):
  fetched = lambda repo, *files: [f'org/{repo}/{name}' for name in files]
  assert storage.open('org/whole@v1').config.width == 32
  assert download.fetched == fetched('whole', 'config.json')
  assert digest(storage.open('org/whole').load()[1]) == golden_digest('pythia')
  assert download.fetched == fetched('whole', 'config.json', 'model.safetensors')
  assert hub.tokenizer('org/whole').name == COMMIT
  assert sorted(download.fetched[2:]) == sorted(fetched('whole', *TOKENIZER))
  assert digest(storage.open('org/sharded').load()[1]) == golden_digest('llama_tied_sharded')
  assert sorted(download.fetched[6:]) == sorted(fetched('sharded', 'config.json', INDEX, *SHARDS))


@pytest.mark.parametrize('name, words', [
    ('org/absent', 'no such model on the Hugging Face Hub, or a private one'),
    ('org/gated', 'is gated: ask for access'), ('org/branch@v2', 'no such revision of it'),
    ('org/teapot', "'418 is a teapot'; try again"), ('org/silent', "'OSError'; try again"),
    ('org/away', 'nor in the cache of the Hugging Face Hub, which cannot be reached'),
    ('org/empty', 'has no config.json'), ('org/pickled', 'is a pickle, which could run code'),
    ('org/shardless', f'{SHARDS[1]} is missing; {INDEX} asks for it'),
    ('org/hostile', "'../../evil' must be the name of a .safetensors file"),
    ('org/mamba', "model_type='mamba' is not supported"),
])
def test_what_is_refused_is_said_in_one_line(name, words, download):
  with pytest.raises(InputError) as error:
    storage.open(name).load()
  message = str(error.value)
  assert name in message and words in message and len(message) < 600
  # Of what cannot be used nothing large is fetched.
  assert [file for file in download.fetched if file.endswith('.safetensors')] == [
      f'{name}/{SHARDS[0]}'] * (name == 'org/shardless')


@pytest.mark.slow
def test_programs_take_names_of_the_hub(offline, tmp_path, capsys):
  """The verdict says which commit was read; a mistake is one line that names the argument."""
  small_hub.lay(offline, 'org/whole', GOLDENS / 'pythia')
  run = lambda *words: seedprint.main(
      resolve_settings(seedprint.Settings, words=words, num_sequences='40', length='4'),
      tmp_path / 'out')
  with pytest.raises(SystemExit):
    run(str(GOLDENS / 'pythia'), 'org/whole')
  assert f'The suspect was read at commit {COMMIT}.' in capsys.readouterr().out
  path, = (tmp_path / 'out').rglob('results.json')
  told = {'name': 'org/whole', 'revision': COMMIT, 'digest': golden_digest('pythia')}
  assert json.loads(path.read_text())['suspect'].items() >= told.items()
  assert f'commit {COMMIT}' in path.with_name('report.html').read_text()
  with pytest.raises(InputError, match='^--suspect: org/absent: there is'):
    run('org/whole', 'org/absent')
