"""Command lines: scales, overrides, and one clear line for every mistake."""

import importlib
from pathlib import Path
import subprocess
import sys

import pytest

from bornbiased_jax.errors import InputError
from experiments import seed_sweep
from experiments.shared import command_line, parsing

EXPERIMENTS = sorted(path.stem for path in Path(seed_sweep.__file__).parent.glob('*.py')
                     if 'command_line.run(' in path.read_text())
assert {'pretrain', 'robustness', 'seed_sweep'} < set(EXPERIMENTS)


def command(*arguments):
  return subprocess.run([sys.executable, '-m', *arguments], capture_output=True, text=True)


def test_overrides_replace_the_scale():
  given = dict(seeds='7,1-3', lengths='5', embedding_seed='4')
  resolved = command_line.resolve(seed_sweep.SCALES, 'smoke', **given)
  assert resolved.seeds == [7, 1, 2, 3]
  assert (resolved.lengths, resolved.embedding_seed, resolved.config) == ([5], 4, ['tiny_gpt2'])
  assert command_line.resolve(seed_sweep.SCALES).seeds == list(range(100))


@pytest.mark.parametrize('scale', seed_sweep.SCALES)
def test_every_scale_resolves(scale):
  assert command_line.resolve(seed_sweep.SCALES, scale).scale == scale


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_flags_can_say_what_scales_say(name):
  """A value, written as a flag, parses to itself; None stands for a flag that is not given."""
  experiment = importlib.import_module(f'experiments.{name}')
  settings = getattr(experiment, 'SETTINGS', command_line.SETTINGS)
  for values in experiment.SCALES.values():
    assert values.keys() == experiment.SCALES['laptop'].keys()
    for setting, value in values.items():
      parse = settings[setting].parse
      if parse is None:
        assert value in (None, False, True)
      elif value is not None:
        parsed = parse(command_line.as_text(value))
        assert parsed == value and type(parsed) is type(value), setting
      if command_line.default_text({'laptop': values}, setting, settings[setting].help).endswith(
          ': all)'):
        assert parse('all') == value, setting


def test_a_word_of_a_list_may_have_commas():
  parse = parsing.some_of('unit order', 'value order', 'unit order, fitted basis')
  assert parse('unit order,fitted basis, value order,unit order') == [
      'unit order, fitted basis', 'value order', 'unit order']
  assert parse('all') == ['unit order', 'value order', 'unit order, fitted basis']
  for text, message in (('fitted basis', "'fitted basis' is not one of unit order, value order"),
                        ('unit order,', "'' is not one of"), ('all,unit order', 'names one twice'),
                        ('unit order,unit order', 'names one twice')):
    with pytest.raises(InputError, match=message):
      parse(text)


def test_a_scale_lends_its_lists():
  command_line.resolve(seed_sweep.SCALES).seeds.append(-1)
  assert command_line.resolve(seed_sweep.SCALES).seeds == list(range(100))


def test_help_writes_values_as_flags():
  values = [0, 1, 2, 3], [42, 43], ['none', 'gain', 'mask'], 3e-4, False
  assert [command_line.as_text(value) for value in values] == [
      '0-3', '42,43', 'none,gain,mask', '0.0003', 'false']
  scales = {'smoke': dict(k=16, seeds=[1], runs=None, n=3),
            'laptop': dict(k=None, seeds=[1], runs=None, n=9),
            'paper': dict(k=None, seeds=[1], runs=None, n=9)}
  assert [command_line.default_text(scales, name) for name in ('k', 'seeds', 'runs', 'n')] == [
      ' (smoke: 16)', ' (default: 1)', '', ' (default: 9; smoke: 3)']
  every = {'laptop': dict(k=['a', 'b']), 'smoke': dict(k=['a'])}
  assert command_line.default_text(every, 'k', 'one of a, b') == ' (default: all; smoke: a)'


def test_help_shows_what_must_be_given_first_and_what_few_change_last():
  kinds = command_line.SETTINGS | {'data': command_line.Setting(str, 'a text', hint='a file')}
  defaults = dict(probe='tokens', dtype='float32', config=['tiny_gpt2'], data=None, length=8)
  assert command_line.in_order(defaults, kinds) == ['data', 'config', 'length', 'probe', 'dtype']


@pytest.mark.parametrize('flag, text', [
    ('config', 'tiny_gpt3'), ('config', 'tiny_gpt2,tiny_gpt2'),
    ('seeds', '5-2'), ('seeds', '1,1'), ('seeds', ''), ('seeds', '4294967296'),
    ('seeds', '0-4294967295'), ('num_sequences', '1'), ('num_sequences', '1e3'),
    ('lengths', '8,8'), ('lengths', '-8'), ('probe', 'words'), ('probe_seed', '-1'),
    ('embedding_seed', ''), ('embedding_seed', 'own'), ('dtype', 'float16'),
    ('batch_size', '0'), ('batch_size', 'auto'), ('chunk_size', 'many'),
])
def test_a_mistake_names_its_flag(flag, text):
  with pytest.raises(InputError, match=f'^--{flag}: ') as error:
    command_line.resolve(seed_sweep.SCALES, 'smoke', **{flag: text})
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('arguments', [
    ('experiments.seed_sweep', '--scale=huge'), ('experiments.seed_sweep', '--sedes=1'),
    ('experiments.seed_sweep', 'smoke'), ('experiments.benchmark', 'sleep'),
    ('experiments', 'sed_sweep'), ('experiments.shared.cells',),
])
def test_a_mistake_is_one_line_and_exit_code_2(arguments, tmp_path):
  done = command(*arguments, f'--output_dir={tmp_path}/out')
  assert done.returncode == 2
  assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1
  assert not (tmp_path / 'out').exists()


def test_all_experiments_are_listed_and_run_by_name():
  listed = command('experiments').stdout
  assert max(map(len, listed.splitlines())) <= 100
  for name in EXPERIMENTS:
    assert f'\n{name} ' in listed
  assert command('experiments', 'seed_sweep', '--help').stdout == command(
      'experiments.seed_sweep', '--help').stdout


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_help_needs_nothing_heavy(name):
  """What takes as long to import as JAX is imported when it is used."""
  heavy = ('matplotlib.figure', 'scipy.stats', 'tensorflow_datasets')
  code = ('import runpy, sys\n'
          'try:\n'
          f'  runpy.run_module("experiments.{name}", run_name="__main__", alter_sys=True)\n'
          'finally:\n'
          f'  print([name for name in {heavy} if name in sys.modules], file=sys.stderr)')
  done = subprocess.run([sys.executable, '-c', code, '--help'], capture_output=True, text=True)
  assert done.returncode == 0 and done.stderr == '[]\n'


def test_help_shows_every_flag():
  done = command('experiments.seed_sweep', '--help')
  assert done.returncode == 0
  for flag in ('scale', 'output_dir', *seed_sweep.SCALES['smoke']):
    assert f'--{flag}: ' in done.stdout


def test_the_folder_without_a_flag_is_that_of_help():
  code = ('from experiments.ablation import SCALES\n'
          'from experiments.shared import command_line\n'
          'command_line.run(lambda settings, directory: print(directory), "ablation", SCALES, "",\n'
          '                 several_hosts=True)')
  done = subprocess.run([sys.executable, '-c', code, '--scale=smoke'], capture_output=True,
                        text=True)
  assert done.stdout == 'results/ablation_smoke\n', done.stderr
