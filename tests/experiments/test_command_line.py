"""Command lines: scales, overrides, and one clear line for every mistake."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import bornbiased_jax
from bornbiased_jax import configs, fields
from bornbiased_jax.errors import InputError
from bornbiased_jax.training import Recipe
from experiments import seed_sweep
from experiments.shared import base_settings, program, session, settings
from experiments.shared.settings import resolve, values_of
import programs
from programs import EXPERIMENTS
import two_hosts

assert {'adversary', 'pretrain', 'seed_sweep'} < set(EXPERIMENTS)


def command(*arguments, **variables):
  return run_python('-m', *arguments, **variables)


def run_python(*arguments, **variables):
  return subprocess.run([sys.executable, *arguments], capture_output=True, text=True,
                        env=os.environ | variables)


def test_overrides_replace_the_scale():
  given = dict(seeds='7,1-3', lengths='5', embedding_seed='4')
  resolved = resolve(seed_sweep.Settings, 'smoke', **given)
  assert resolved.seeds == [7, 1, 2, 3]
  assert (resolved.lengths, resolved.embedding_seed, resolved.config) == ([5], 4, ['tiny_gpt2'])
  assert resolve(seed_sweep.Settings).seeds == list(range(100))


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_flags_can_say_what_scales_say(name):
  """A value, written as a flag, parses to itself; None stands for a flag that is not given."""
  own = programs.load(name).Settings
  assert own.SCALES[:2] == ('smoke', 'laptop') and own.SCALES[-1] == 'paper'
  for flag, kind in settings.kinds(own).items():
    for value in settings.values_of(own, flag).values():
      if kind.is_switch:
        assert value in (None, False, True)
      elif value is not None:
        parsed = kind.parse(fields.as_text(value))
        assert parsed == value and type(parsed) is type(value), flag
      if settings.default_texts({'laptop': value}, kind.help) == {'laptop': 'all'}:
        assert kind.parse('all') == value, flag


def test_a_word_of_a_list_may_have_commas():
  parse = fields.some_of('unit order', 'value order', 'unit order, fitted basis')
  assert parse('unit order,fitted basis, value order,unit order') == [
      'unit order, fitted basis', 'value order', 'unit order']
  assert parse('all') == ['unit order', 'value order', 'unit order, fitted basis']
  for text, message in (('fitted basis', "'fitted basis' is not one of unit order, value order"),
                        ('unit order,', "'' is not one of"), ('all,unit order', 'names one twice'),
                        ('unit order,unit order', 'names one twice')):
    with pytest.raises(InputError, match=message):
      parse(text)


@pytest.mark.parametrize('scale', base_settings.Training.SCALES)
def test_a_short_run_is_not_refused_for_what_nobody_set(scale):
  given = dict(num_steps='2', data='tinyshakespeare')
  settings = resolve(base_settings.Training, scale, **given)
  base_settings.check(settings)
  assert settings.warmup_steps == 0 and not settings.keep_steps
  whole = resolve(base_settings.Training, scale, data='tinyshakespeare')
  assert whole == base_settings.at_scale(base_settings.Training, scale, data='tinyshakespeare')
  assert whole.warmup_steps == values_of(base_settings.Training, 'warmup_steps')[scale]
  slow = resolve(base_settings.Training, scale, **given, peak_lr='1e-06')
  base_settings.check(slow)
  assert slow.min_lr == pytest.approx(1e-7)
  for flag, value in (('warmup_steps', '3'), ('keep_steps', '1,7'), ('min_lr', '1')):
    with pytest.raises(InputError, match=flag):
      base_settings.check(resolve(base_settings.Training, scale, **given | {flag: value}))


def test_a_scale_lends_its_lists():
  resolve(seed_sweep.Settings).seeds.append(-1)
  assert resolve(seed_sweep.Settings).seeds == list(range(100))


def test_help_writes_values_as_flags():
  text = lambda help='', **values: settings.default_texts(values, help)
  assert text(smoke=16, laptop=None) == {'smoke': '16'}
  assert text(smoke=[1], laptop=[1]) == {'laptop': '1'} and text(laptop=None) == {}
  assert text(smoke=3, laptop=9, paper=9) == {'laptop': '9', 'smoke': '3'}
  assert text('one of a, b', laptop=['a', 'b'], smoke=['a']) == {'laptop': 'all', 'smoke': 'a'}


class Own(base_settings.Transformers):
  data: str | None = settings.setting(None, str, 'a text', hint='a file')
  dtype: str = settings.setting('float32', paper='bfloat16')


def test_a_program_changes_what_it_inherits():
  assert resolve(Own, 'paper', data='x').dtype == 'bfloat16'
  assert settings.kinds(Own)['dtype'] == settings.kinds(base_settings.Transformers)['dtype']
  with pytest.raises(InputError, match='^--data: is missing: a file'):
    resolve(Own)
  # What must be given is shown first, and what few change last.
  assert list(settings.kinds(Own))[-1] in Own.TECHNICAL
  assert list(settings.kinds(Own))[0] == 'data'


def test_models_with_fields_of_their_own(tmp_path):
  file = tmp_path / 'own.json'
  file.write_text('{"preset": "tiny_gpt2", "width": 64}')
  text = f'tiny_gpt2,num_layers=6, width=192,tiny_llama2,{file},num_layers=2'
  assert resolve(seed_sweep.Settings, 'smoke', config=text).config == [
      'tiny_gpt2,num_layers=6,width=192', 'tiny_llama2', 'tiny_gpt2,num_layers=2,width=64']


@pytest.mark.parametrize('flag, text', [
    ('config', 'tiny_gpt3'), ('config', 'tiny_gpt2,tiny_gpt2'), ('config', 'tiny_gpt2,widht=64'),
    ('config', 'num_layers=6'), ('config', 'tiny_gpt2,tiny_gpt2,width=128'),
    ('seeds', '5-2'), ('seeds', '1,1'), ('seeds', ''), ('seeds', '4294967296'),
    ('seeds', '0-4294967295'), ('num_sequences', '1'), ('num_sequences', '1e3'),
    ('lengths', '8,8'), ('lengths', '-8'), ('probe', 'words'), ('probe_seed', '-1'),
    ('embedding_seed', ''), ('embedding_seed', 'own'), ('dtype', 'float16'),
    ('batch_size', '0'), ('batch_size', 'auto'), ('chunk_size', 'many'),
])
def test_a_mistake_names_its_flag(flag, text):
  with pytest.raises(InputError, match=f'^--{flag}: '):
    resolve(seed_sweep.Settings, 'smoke', **{flag: text})


@pytest.mark.parametrize('arguments, message', [
    (('seed_sweep', '--scale=huge'), 'error: '),
    (('seed_sweep', '--sedes=1'), 'error: --sedes is no flag (did you mean --seeds?); see --help'),
    (('seed_sweep', '--seeds'), 'error: --seeds: expected one argument; see --help'),
    (('seed_sweep', '--seeds', '5-2'), "error: --seeds: '5-2' runs downwards"),
    (('seed_sweep', 'tiny_gpt2'), "error: 'tiny_gpt2' is not a flag; did you mean --"),
    (('lineage', '--json=yes', 'a'), 'error: --json: ignored explicit argument'),
])
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path):
  code, _, error = two_hosts.run_here(*arguments, f'--output_dir={tmp_path}/out')
  assert code == 2 and error.startswith(message) and error.count('\n') == 1
  assert not (tmp_path / 'out').exists()


MISSPELT = "error: 'sed_sweep' is no experiment (did you mean seed_sweep?); there are ablation, "


@pytest.mark.parametrize('arguments, message', [
    (('experiments', 'sed_sweep'), MISSPELT), (('experiments.sed_sweep',), MISSPELT),
    (('experiments.shared.measurements',), 'error: ')])
def test_what_is_no_program_is_one_line(arguments, message):
  done = command(*arguments)
  assert done.returncode == 2
  assert done.stderr.startswith(message) and done.stderr.count('\n') == 1


SMALL = 'tiny_gpt2,num_layers=1,width=16,mlp_width=16,num_heads=1,vocab_size=257'


def test_a_platform_that_is_not_here_is_one_line_and_exit_code_2():
  done = command('experiments.sample', f'{SMALL}:1', '--tokenizer=bytes', JAX_PLATFORMS='abacus')
  assert done.returncode == 2 and done.stderr.count('\n') == 1
  assert done.stderr.startswith('error: JAX_PLATFORMS=abacus cannot be used here: ')


ONE_PROCESS = """
import contextlib, json, resource, sys
import programs, two_hosts
from bornbiased_jax.models import flops
flops.matmul_size = lambda: 64  # As in conftest.
own = [programs.load(name).__name__ for name in programs.EXPERIMENTS]
loaded = list(sys.modules)
for name in own: del sys.modules[name]  # Each begins anew when it is run.
from experiments import ablation, through_training
from experiments.shared import program
given = sys.argv[1]
for name, of, words in (('ablation', ablation, []),
                        ('through_training', through_training, ['a/b', 'c', '--length=8'])):
  sys.argv[1:] = ['--scale=smoke', *words]
  with contextlib.suppress(SystemExit):
    program.run(lambda settings, directory: print(directory), name, of.Settings, '',
                several_hosts=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000,) * 2)
print(json.dumps([loaded, [two_hosts.run_here(*each) for each in json.loads(given)]]))
"""


@pytest.fixture(scope='module')
def one_process(tmp_path_factory):
  """What programs import, a folder without a flag, and what some say where files have 40 kB."""
  out = tmp_path_factory.mktemp('limited')
  commands = {
      'amplification': ('--num_sequences=4', '--seeds=0,1', '--lengths=8'),
      'seedprint': (f'{SMALL}:1', f'{SMALL}:2'),
      'pretrain': ('--warmup_steps=6',)}
  given = [[name, *flags, '--scale=smoke', f'--output_dir={out}/{name}']
           for name, flags in commands.items()]
  path = os.pathsep.join(filter(None, sys.path))
  done = subprocess.run(
      [sys.executable, '-c', ONE_PROCESS, json.dumps(given)], capture_output=True, text=True,
      env=os.environ | {'PYTHONPATH': path, 'PATH': ''})  # Git would leave a torn index behind.
  assert done.returncode == 0, done.stderr
  *folders, last = done.stdout.splitlines()
  loaded, said = json.loads(last)
  return loaded, folders, dict(zip(commands, said, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize('program, file, printed', [
    ('amplification', 'figure.png', 'cosine'), ('seedprint', '.npy', '')])
def test_a_full_disk_is_one_line_after_what_was_measured(program, file, printed, one_process):
  """A disk on which a file can have 40 kB at most."""
  code, out, error = one_process[2][program]
  assert code == 2, error
  assert 'Traceback' not in error
  assert error.endswith(f'{file} cannot be written: File too large\n')
  assert printed in out


@pytest.mark.slow
def test_an_error_of_the_library_names_the_flag(one_process):
  code, _, error = one_process[2]['pretrain']
  assert code == 2
  assert error == 'error: --warmup_steps: warmup_steps=6 must be fewer than num_steps=6\n'


@pytest.mark.slow
def test_programs_import_what_is_heavy_when_they_use_it(one_process):
  assert 'experiments.seed_sweep' in one_process[0]
  assert not {'scipy.stats', 'tensorflow_datasets'} & set(one_process[0])


def test_all_experiments_are_listed_and_run_by_name():
  listed = command('experiments').stdout
  assert max(map(len, listed.splitlines())) <= 100
  for name in EXPERIMENTS:
    assert f'\n  {name} ' in listed
  # Colab sets MPLBACKEND for all processes, also where its package is missing.
  shown = command('experiments', 'seed_sweep', '--help', MPLBACKEND='no_such_backend')
  assert (0, shown.stdout, shown.stderr) == two_hosts.run_here('seed_sweep', '--help')


def test_the_version_is_said():
  said = command('experiments', '--version').stdout
  assert said == f'bornbiased_jax {bornbiased_jax.__version__}\n'


def test_a_program_outlives_the_reader_of_its_output():
  code = "from experiments.shared import session; session.run(lambda: print('all'))"
  with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True) as program:
    program.stdout.close()
    assert 'Error' not in program.stderr.read()
  assert program.returncode == 0


@pytest.mark.parametrize('program, code, said', [
    ('from experiments.shared import session\nprint("seen"); held = session.hold(sys.argv[1])\n'
     'session.run(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(9))',
     130, ('seen\n', '\ninterrupted; the same command continues from here\n')),
    ('os.kill(os.getpid(), signal.SIGINT); time.sleep(9)', -signal.SIGINT, ('', '')),
])
def test_an_interrupt_is_no_traceback(program, code, said, tmp_path):
  """In a program at work, which then holds no folder, and while its modules are imported."""
  # A shell that starts the tests in the background lets them ignore interrupts.
  done = run_python('-c', 'import os, signal, sys, time\nimport experiments\n'
                    'signal.signal(signal.SIGINT, signal.default_int_handler)\n'
                    f"experiments.prepare('ablation')\n{program}", tmp_path)
  assert (done.returncode, done.stdout, done.stderr) == (code, *said)
  with session.hold(tmp_path):
    pass


def test_a_folder_is_held_by_one(tmp_path):
  with session.hold(tmp_path / 'runs'):
    with session.hold(tmp_path / 'other'):
      pass
    with (pytest.raises(InputError, match='another program works in'),
          session.hold(tmp_path / 'runs' / '..' / 'runs')):
      pass
  with session.hold(tmp_path / 'runs'):
    assert not (tmp_path / 'runs').exists()


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_help_shows_every_flag_in_one_of_its_groups(name, monkeypatch, capsys):
  module = programs.load(name)
  own, doc = module.Settings, module.__doc__.strip()
  usage = f'usage: python -m experiments.{name} {settings.arguments_of(own)[1]}'
  monkeypatch.setattr('sys.argv', [name, '--help'])
  with pytest.raises(SystemExit, match='0'):
    program.run(module.main, name, own, doc)
  shown = capsys.readouterr().out
  assert shown.startswith(usage.rstrip())
  assert f'\n\n{doc}\n\n' in shown
  for flag in ('scale', 'output_dir', 'format', *settings.kinds(own)):
    assert len(re.findall(rf'^  --{flag}\b', shown, re.M)) == 1, flag
  assert ('--help=models' in shown) == ('config' in settings.kinds(own))


def test_models_are_listed_once():
  _, shown, _ = two_hosts.run_here('seed_sweep', '--help=models')
  assert all(f'{name}: ' in shown for name in configs.PRESETS)


@pytest.mark.parametrize('given, expected', [
    (('--seeds', '1-3', '--json', 'a', '--length=8', 'b', '--nojson'),
     (dict(seeds='1-3', json=False, length='8'), ['a', 'b'])),
    (('a', '--seeds='), (dict(seeds=''), ['a'])), ((), ({}, [])),
])
def test_flags_and_words_come_in_any_order(given, expected, monkeypatch):
  """The value of a flag follows = or a space, and --noNAME is the opposite of --NAME."""
  class Words(base_settings.Inputs):
    seeds: list[int] = settings.setting([1])
    json: bool = settings.setting(False, fields.switch, 'as JSON')
    words: list[str] = settings.arguments('WORD ...')

  texts, words = expected
  monkeypatch.setattr('sys.argv', ['program', *given])
  if texts.get('seeds') == '':
    with pytest.raises(SystemExit, match='2'):
      program.run(print, 'own', Words, '', has_folder=False)
    return
  found = []
  with pytest.raises(SystemExit):
    program.run(found.append, 'own', Words, '', has_folder=False)
  assert found == [resolve(Words, words=words, **texts)]


def test_a_recipe_refuses_what_its_flag_refuses():
  """One declaration checks both."""
  good = dict(num_steps=9, batch_size=4, length=8, warmup_steps=2)
  assert Recipe(**good).num_steps == 9
  for wrong in (dict(num_steps=0), dict(length=2**20 + 1), dict(peak_lr=-1.0), dict(clip=0.0),
                dict(num_steps=9.5), dict(batch_size=True), dict(adapter='dora'),
                dict(weight_decay=float('nan')), dict(start_id=-1)):
    name, value = *wrong, *wrong.values()
    with pytest.raises(InputError) as error:
      Recipe(**good | wrong)
    assert error.value.field == name
    with pytest.raises(InputError, match=f'^--{name}: '):
      resolve(base_settings.Training, **{name: fields.as_text(value)})


def test_the_package_alone_changes_nothing():
  """Only a program starts itself again for huge pages, and sets what tqdm reads."""
  shown = ('print(sorted(set(os.environ.items()) ^ before), '
           '{*list(sys.modules)[count:]} - sys.stdlib_module_names)')
  code = ('import os, sys; before, count = set(os.environ.items()), len(sys.modules);'
          f'import experiments; {shown}')
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert done.stdout == "[] {'experiments'}\n", done.stderr


@pytest.mark.skipif(sys.platform != 'linux', reason='huge pages are asked for on Linux')
@pytest.mark.parametrize('given, expected', [
    (None, 'glibc.malloc.hugetlb=1'), ('glibc.malloc.check=0', 'glibc.malloc.check=0')])
@pytest.mark.parametrize('way', [('-m', 'experiments.sample'), ('-m', 'experiments', 'sample')])
def test_a_program_has_huge_pages_unless_its_user_says_otherwise(way, given, expected, tmp_path):
  """What a program inherits, shown by a module that stands in the place of JAX.

  A letter that the terminal lacks is shown as its number.
  """
  (tmp_path / 'jax.py').write_text(
      'import os; print(os.environ["GLIBC_TUNABLES"], "\\u2013"); os._exit(0)')
  variables = {name: value for name, value in os.environ.items() if name != 'GLIBC_TUNABLES'}
  variables['PYTHONIOENCODING'] = 'ascii'
  variables |= {'PYTHONPATH': f'{tmp_path}{os.pathsep}{variables.get("PYTHONPATH", "")}'}
  variables |= {'GLIBC_TUNABLES': given} if given else {}
  done = subprocess.run([sys.executable, '-u', *way, 'tiny_gpt2:1'], capture_output=True,
                        text=True, env=variables)
  assert done.stdout == f'{expected} \\u2013\n', done.stderr


@pytest.mark.slow
def test_the_folder_without_a_flag_is_that_of_help(one_process):
  assert one_process[1] == ['results/ablation_smoke',
                            'results/through_training_smoke/a_b_and_c_length_8']
