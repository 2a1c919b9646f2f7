"""Models of the Hugging Face Hub: what is fetched, from where, and what is said if it is not."""

import json
import os
import subprocess
import sys

import pytest

from bornbiased_jax import lineage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import resolve
from bornbiased_jax.storage import hub, huggingface
from bornbiased_jax.storage.digests import digest
from directories import GOLDENS
from experiments import seedprint
import small_hub
from small_hub import COMMIT

pytest.importorskip('huggingface_hub')
SHARDS = 'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'
INDEX = 'model.safetensors.index.json'
# Nothing of this is ever wanted.
REST = {name: b'0' * 99 for name in (
    'pytorch_model.bin', 'consolidated.safetensors', 'model.fp16.safetensors', 'modeling_own.py',
    'onnx/model.onnx', 'README.md', 'training_args.bin')}
# Loads networks in a process of its own, because huggingface_hub reads its settings when imported.
# There is no time to wait between retries.
ASK = """
import json, sys, time
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import resolve
from bornbiased_jax.storage.digests import digest
time.sleep = lambda seconds: None
for name in sys.argv[2:]:
  try:
    print(json.dumps(eval(sys.argv[1])))
  except InputError as error:
    print(json.dumps(str(error)))
"""
LOAD, CONFIG = 'digest(resolve.load(name)[1])', 'resolve.load_config(name).width'


def content(golden, **changes):
  """The files of a golden directory, with others beside or in place of them."""
  files = {path.name: path.read_bytes() for path in (GOLDENS / golden).iterdir()}
  return {name: value for name, value in (files | changes).items() if value is not None}


def index_of(shard):
  return json.dumps({'weight_map': {'a': shard}}).encode()


REPOS = {
    'org/whole': (COMMIT, content('pythia') | REST),
    'org/sharded': (COMMIT, content('llama_tied_sharded') | REST),
    'org/pickled': (COMMIT, content('pythia', **{'model.safetensors': None}) | REST),
    'org/hostile': (COMMIT, content('llama_tied_sharded', **{INDEX: index_of('../../evil')})),
    'org/absolute': (COMMIT, content('llama_tied_sharded', **{INDEX: index_of('/etc/passwd')})),
    'org/shardless': (COMMIT, content('llama_tied_sharded', **{SHARDS[1]: None})),
    'org/mamba': (COMMIT, {'config.json': b'{"model_type": "mamba"}', 'model.safetensors': b''}),
    'org/empty': (COMMIT, {'README.md': b'0'}),
    'org/bare': (COMMIT, content('pythia', **{'model.safetensors': None})),
}
REFUSALS = {'org/gated': (401, 'GatedRepo'), 'org/forbidden': (403, 'GatedRepo'),
            'org/private': (401, 'RepoNotFound'), 'org/teapot': (418, None)}


def settings(cache, url=None):
  """Environment variables of a process: a cache, and a Hub or none."""
  given = {'HF_HUB_CACHE': str(cache), 'HF_ENDPOINT': url} if url else {
      'HF_HUB_CACHE': str(cache), 'HF_HUB_OFFLINE': '1'}
  return {name: value for name, value in os.environ.items()
          if not name.startswith('HF_')} | given | {'HF_HUB_DISABLE_PROGRESS_BARS': '1'}


def ask(environment, expression, *names):
  """What another process finds for each name: the value of the expression, or an error's line."""
  done = subprocess.run([sys.executable, '-c', ASK, expression, *names], env=environment,
                        capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return [json.loads(line) for line in done.stdout.splitlines()]


def golden_digest(name):
  return digest(huggingface.load(GOLDENS / name)[1])


@pytest.fixture(scope='module')
def server():
  with small_hub.serve(REPOS, REFUSALS) as started:
    yield started


# Names


@pytest.mark.parametrize('name, expected', [
    ('org/model', True), ('org/model@v1', True), ('org/model@refs/pr/1', True),
    ('EleutherAI/pythia-70m@step3000', True), ('results/typo@100', True),
    ('model', False), ('model@v1', False), ('./org/model', False), ('/org/model', False),
    ('org/model/', False), ('org/model/part', False), ('../model', False), ('org/..', False),
    ('org/model@', False), ('org/model@../x', False), ('org/model@/x', False), ('a/b--c', False),
    ('org/model.npz', False), ('tiny_gpt2:1', False), ('org/model\n', False), ('', False),
])
def test_names(name, expected):
  assert hub.is_name(name) == expected


def test_a_folder_comes_first(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert resolve.locate('org/model') == ('hub', 'org/model', None)
  (tmp_path / 'org').mkdir()
  (tmp_path / 'org' / 'model').symlink_to(GOLDENS / 'pythia')
  assert resolve.locate('org/model') == ('transformers', 'org/model', None)
  assert resolve.locate('org/model@7') == ('run', 'org/model', 7)
  with pytest.raises(InputError, match="org/model is a folder here, and 'v1' no step of it"):
    resolve.locate('org/model@v1')


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(InputError) as error:
    resolve.load('results/typo')
  assert str(error.value) == (
      'results/typo: there is no such folder here, and models of the Hugging Face Hub need '
      "huggingface_hub: pip install 'bornbiased_jax[hub]'")


# Offline


def test_a_cache_is_enough_offline(tmp_path):
  """Its files are all that is read, and what is not there is named."""
  small_hub.lay(tmp_path, 'org/whole', GOLDENS / 'pythia')
  small_hub.lay(tmp_path, 'org/sharded', GOLDENS / 'llama_tied_sharded', branch='v1')
  small_hub.lay(tmp_path, 'org/part', GOLDENS / 'pythia', ['config.json'])
  names = ('org/whole', f'org/whole@{COMMIT}', 'org/sharded@v1', 'org/sharded', 'org/absent',
           'org/part')
  *loaded, branch, absent, part = ask(settings(tmp_path), LOAD, *names)
  whole, sharded = map(golden_digest, ('pythia', 'llama_tied_sharded'))
  assert loaded == [whole, whole, sharded]
  words = ('{}: there is no such folder here, and the cache of the Hugging Face Hub has no {} of '
           'such a model, which HF_HUB_OFFLINE keeps from being fetched')
  assert branch == words.format('org/sharded', 'config.json')
  assert absent == words.format('org/absent', 'config.json')
  assert part == words.format(f'org/part@{COMMIT}', f'model.safetensors or {INDEX}')
  assert sorted(path.name for path in tmp_path.iterdir()) == [
      'models--org--part', 'models--org--sharded', 'models--org--whole']


def test_a_commit_at_hand_needs_no_network(tmp_path, monkeypatch):
  """A name with its commit is that network for good, and the report says which it was."""
  monkeypatch.setattr('huggingface_hub.file_download.get_hf_file_metadata', None)
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
  small_hub.lay(tmp_path, 'org/whole', GOLDENS / 'pythia')
  small_hub.lay(tmp_path, 'org/sharded', GOLDENS / 'llama_tied_sharded')
  loaded = resolve.load(f'org/sharded@{COMMIT}')[1]
  assert digest(loaded) == golden_digest('llama_tied_sharded')
  name = f'org/whole@{COMMIT}'
  assert hub.pinned(name) == name
  report = lineage.compare_networks(name, 'tiny_gpt2:1', Probe('tokens', 20, 4))
  assert report['base'] == {'name': name, 'revision': COMMIT, 'digest': golden_digest('pythia')}
  assert report['suspect']['name'] == 'tiny_gpt2:1'


# From a server


def test_only_wanted_files_are_requested(server, tmp_path):
  before = len(server.requested)
  assert ask(settings(tmp_path, server.url), CONFIG, 'org/whole@v1') == [32]
  get = lambda repo, *files: [f'GET /{repo}/resolve/{COMMIT}/{name}' for name in files]
  fetched = lambda: [each for each in server.requested[before:] if each.startswith('GET')]
  assert fetched() == ['GET /org/whole/resolve/v1/config.json']
  names = 'org/whole', 'org/sharded'
  assert ask(settings(tmp_path, server.url), LOAD, *names) == [
      golden_digest('pythia'), golden_digest('llama_tied_sharded')]
  assert fetched()[1:] == [
      *get('org/whole', 'model.safetensors'), 'GET /org/sharded/resolve/main/config.json',
      *get('org/sharded', INDEX, *SHARDS)]
  asked = {each.rpartition('/')[2] for each in server.requested[before:]}
  assert asked == {'config.json', 'model.safetensors', INDEX, *SHARDS}


# What the Hub answers, and what is said in one line.
SAID = {
    'org/absent': 'org/absent: there is no such folder here, and no such model on the Hugging Face '
                  'Hub, or a private one, which needs a token, by HF_TOKEN or `hf auth login`',
    'org/gated': 'org/gated is gated: ask for access at its page on the Hugging Face Hub, and give '
                 'a token that has it, by HF_TOKEN or `hf auth login`',
    'org/whole@v2': 'org/whole on the Hugging Face Hub has no revision v2; give a branch, a tag or '
                    'a commit that its page lists',
    'org/empty': 'org/empty on the Hugging Face Hub has no config.json, so that it is no model of '
                 'transformers',
    'org/bare': f'org/bare@{COMMIT} on the Hugging Face Hub has no safetensors',
    'org/shardless': f'org/shardless@{COMMIT} on the Hugging Face Hub has no {SHARDS[1]}; its '
                     f'{INDEX} asks for it',
}
SAID |= {other: SAID[name].replace(name, other)
         for name, other in (('org/gated', 'org/forbidden'), ('org/absent', 'org/private'))}
# The same where the line also has a path, or words of huggingface_hub.
PARTS = {
    'org/teapot': ('org/teapot: there is no such folder here, and the Hugging Face Hub does not '
                   'give config.json of such a model: ', '418'),
    'org/pickled': (f'org/pickled@{COMMIT} on the Hugging Face Hub has no safetensors, but '
                    'pytorch_model.bin is a pickle, which could run code; convert it with ',
                    f"from_pretrained('org/pickled', revision='{COMMIT}')"),
    'org/hostile': ("shard '../../evil' must be the name of a .safetensors file beside it", INDEX),
    'org/absolute': ("shard '/etc/passwd' must be the name", INDEX),
    'org/mamba': ("model_type='mamba' is not supported", 'config.json'),
}


def test_what_is_refused_is_said_in_one_line(server, tmp_path):
  before = len(server.requested)
  lines = ask(settings(tmp_path, server.url), LOAD, *SAID, *PARTS)
  said = dict(zip([*SAID, *PARTS], lines, strict=True))
  assert {name: said[name] for name in SAID} == SAID
  for name, parts in PARTS.items():
    assert all(part in said[name] for part in parts), said[name]
    assert '\n' not in said[name] and len(said[name]) < 600
  # A pickle is only asked after, and of what cannot be used nothing more is fetched.
  fetched = [each for each in server.requested[before:] if each.startswith('GET')]
  assert [each for each in fetched if 'config.json' not in each] == [
      f'GET /org/shardless/resolve/{COMMIT}/{INDEX}',
      f'GET /org/shardless/resolve/{COMMIT}/{SHARDS[0]}',
      f'GET /org/hostile/resolve/{COMMIT}/{INDEX}', f'GET /org/absolute/resolve/{COMMIT}/{INDEX}']


def test_an_interrupted_download_is_finished_by_the_next_call(server, tmp_path):
  server.cuts = 7
  stopped, finished = ask(settings(tmp_path, server.url), LOAD, *['org/whole'] * 2)
  start = f'org/whole@{COMMIT}: model.safetensors cannot be fetched from the Hugging Face Hub: '
  assert stopped.startswith(start) and stopped.endswith('; try again') and '\n' not in stopped
  assert finished == golden_digest('pythia') and server.cuts <= 1
  server.cuts = 0


def test_programs_take_names_of_the_hub(server, tmp_path):
  """The verdict says which commit was read; a mistake is one line and exit code 2."""
  run = lambda base, suspect, *more: subprocess.run(
      [sys.executable, '-m', 'experiments.seedprint', base, suspect, '--num_sequences=40',
       '--length=4', f'--output_dir={tmp_path}/out', *more],
      env=settings(tmp_path / 'cache', server.url), capture_output=True, text=True)
  done = run('tiny_gpt2:1', 'org/whole@v1')
  assert done.returncode == seedprint.EXIT_CODES['inconclusive'], done.stderr
  assert f'The suspect was read at commit {COMMIT}.' in done.stdout
  path, = (tmp_path / 'out').glob('*/results.json')
  report = json.loads(path.read_text())
  assert report['suspect'] == {'name': 'org/whole@v1', 'revision': COMMIT,
                               'digest': golden_digest('pythia')}
  assert f'commit {COMMIT}' in path.with_name('report.html').read_text()
  done = run('org/whole', 'org/absent')
  assert (done.returncode, done.stderr) == (2, f'error: --suspect: {SAID["org/absent"]}\n')
