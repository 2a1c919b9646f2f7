"""Command lines: scales, overrides, and one clear line for every mistake."""

import subprocess
import sys

import pytest

from bornbiased_jax.errors import InputError
from experiments import command_line, seed_sweep


def command(*arguments):
  return subprocess.run([sys.executable, '-m', *arguments], capture_output=True, text=True)


def test_overrides_replace_the_scale():
  resolved = command_line.resolve(seed_sweep.SCALES, 'smoke', seeds='7,1-3', lengths='5', embedding_seed='4')
  assert resolved.seeds == [7, 1, 2, 3]
  assert (resolved.lengths, resolved.embedding_seed, resolved.config) == ([5], 4, ['tiny_gpt2'])
  assert command_line.resolve(seed_sweep.SCALES).seeds == list(range(100))


@pytest.mark.parametrize('scale', seed_sweep.SCALES)
def test_every_scale_resolves(scale):
  assert command_line.resolve(seed_sweep.SCALES, scale).scale == scale


@pytest.mark.parametrize('flag, text', [
    ('config', 'tiny_gpt3'), ('config', 'tiny_gpt2,tiny_gpt2'), ('seeds', '5-2'), ('seeds', '1,1'), ('seeds', ''),
    ('seeds', '4294967296'), ('seeds', '0-4294967295'), ('num_sequences', '1'), ('num_sequences', '1e3'),
    ('embedding_seed', ''),
    ('lengths', '8,8'), ('lengths', '-8'), ('probe', 'words'), ('probe_seed', '-1'), ('embedding_seed', 'own'),
    ('dtype', 'float16'), ('batch_size', '0'), ('chunk_size', 'many'),
])
def test_a_mistake_names_its_flag(flag, text):
  with pytest.raises(InputError, match=f'^--{flag}: ') as error:
    command_line.resolve(seed_sweep.SCALES, 'smoke', **{flag: text})
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('arguments', [
    ('experiments.seed_sweep', '--scale=huge'), ('experiments.seed_sweep', '--sedes=1'),
    ('experiments.seed_sweep', 'smoke'), ('experiments.benchmark', 'sleep'),
])
def test_a_mistake_is_one_line_and_exit_code_2(arguments, tmp_path):
  done = command(*arguments, f'--output_dir={tmp_path}/out')
  assert done.returncode == 2
  assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1
  assert not (tmp_path / 'out').exists()


def test_help_shows_every_flag():
  done = command('experiments.seed_sweep', '--help')
  assert done.returncode == 0
  for flag in ('scale', 'output_dir', *seed_sweep.SCALES['smoke']):
    assert f'--{flag}: ' in done.stdout
