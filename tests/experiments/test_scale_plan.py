"""What a program takes on a TPU slice: meshes, messages and what XLA's own compiler says."""

import json
import os
from pathlib import Path
import subprocess
import sys
import time

import jax
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import num_parameters
from experiments import scale_plan
from experiments.shared import settings


def resolve(program, **given):
  return scale_plan.resolve(settings.resolve(scale_plan.Settings, program=program, **given))


def build(program, **given):
  chosen = resolve(program, **given)
  return scale_plan.BUILDERS[program](chosen, jax.devices())


@pytest.mark.parametrize('program, given, shape', [
    ('train', {}, (4, 1, 1)), ('fingerprint', {}, (1, 4, 1)), ('train', {'tensor': '2'}, (2, 1, 2)),
    ('fingerprint', {'tensor': '2'}, (1, 2, 2)), ('train', {'data': '2'}, (2, 2, 1)),
    ('train', {'fsdp': '4'}, (1, 4, 1)), ('fingerprint', {'fsdp': '2'}, (2, 2, 1)),
])
def test_what_no_flag_says_takes_the_devices_left(program, given, shape):
  mesh, _ = build(program, **given)
  assert tuple(mesh.shape.values()) == shape


@pytest.mark.parametrize('name', ['v5e', 'v5e:0x2', 'v5e:2x', 'v9:2x2', 'v5e:2x2x2x2', 'v5e:2x4 '])
def test_an_unknown_topology_is_one_line(name):
  with pytest.raises(InputError, match='as v5e:2x4'):
    scale_plan.topology_name(name)


def test_without_libtpu_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(scale_plan.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(InputError, match='pip install'):
    scale_plan.devices_of('v5e:2x4')


@pytest.mark.parametrize('program, given, message', [
    ('sweeps', {}, "--program: 'sweeps' is not one of train, sweep, fingerprint"),
    ('sweep', {'fsdp': '2'}, '--fsdp: not with --program=sweep, but with train, fingerprint'),
    ('train', {'num_seeds': '8'}, '--num_seeds: not with --program=train, but with sweep'),
    ('fingerprint', {'dtype': 'bfloat16'},
     '--dtype: not with --program=fingerprint, but with train, sweep'),
    ('sweep', {'num_seeds': '0'}, "--num_seeds: '0' is not a whole number from 1"),
    ('sweep', {'num_seeds': '6'}, '--num_seeds=6 .* the 4 devices of --topology'),
    ('fingerprint', {'batch_size': '6'}, '--batch_size=6 is not a multiple of .* = 4'),
    ('fingerprint', {'fsdp': '3'}, '--fsdp=3 .* is not the 4 devices'),
    ('fingerprint', {'length': '5000'}, '--length=5000 exceeds the 4096 positions'),
    ('train', {'batch_size': 'auto'}, "--batch_size: 'auto' is not a whole number"),
    ('train', {'batch_size': '4', 'accumulation': '2'},
     '--batch_size=4 is not a multiple of --accumulation .* = 8'),
])
def test_a_mistake_names_its_flag(program, given, message):
  with pytest.raises(InputError, match=message):
    build(program, **given)


def test_what_is_left_to_the_program_is_what_the_package_chooses():
  def choose(program, **given):
    chosen = resolve(program, **given)
    scale_plan.BUILDERS[program](chosen, jax.devices())
    return chosen

  sweep, fingerprint = choose('sweep'), choose('fingerprint', length='1024')
  assert (sweep.num_seeds, sweep.batch_size, sweep.length) == (4, 16, 1024)
  assert fingerprint.batch_size == 4 * 16
  assert choose('train', config='tiny_llama2').length == 2048


def test_a_plan_says_how_it_came_about(tmp_path, monkeypatch):
  monkeypatch.setattr(scale_plan, 'make_plan', lambda settings: time.sleep(0.1) or {'fits': True})
  monkeypatch.setattr(scale_plan, 'describe', str)
  with pytest.raises(SystemExit):
    scale_plan.main(settings.resolve(scale_plan.Settings, output_dir=str(tmp_path)))
  made = json.loads((tmp_path / 'scale_plan.json').read_text())
  assert made['run'].keys() == {'command', 'commit', 'processor', 'started', 'seconds'}
  assert made['fits'] and 0.1 <= made['run']['seconds'] < 10


def run(*arguments):
  # The compiler for TPUs refuses the flags by which tests compile for a CPU.
  done = subprocess.run([sys.executable, '-m', 'experiments.scale_plan', *arguments],
                        capture_output=True, text=True, cwd=Path(__file__).parents[2],
                        env=os.environ | {'XLA_FLAGS': ''})
  return done.returncode, done.stdout, done.stderr


def plan_of(directory, *arguments):
  pytest.importorskip('libtpu')
  code, out, error = run('--topology=v5e:2x4', f'--output_dir={directory}', *arguments)
  assert code == 0 and 'fits; ' in out, error
  return json.loads((directory / 'scale_plan.json').read_text())


def test_a_step_compiled_for_eight_chips(tmp_path):
  plan = plan_of(tmp_path, '--config=tiny_llama2', '--batch_size=16', '--length=256')
  size = num_parameters(configs.get('tiny_llama2'))
  assert plan['mesh'] == {'data': 8, 'fsdp': 1, 'tensor': 1}
  # Parameters and two moments are float32 in whole tiles.
  assert 12 * size < plan['memory']['arguments'] < 12.5 * size
  assert plan['cost_loops_once'].keys() == {'flops', 'bytes accessed'}


def test_networks_of_a_sweep_are_spread_over_chips(tmp_path):
  plan = plan_of(tmp_path, '--program=sweep', '--config=tiny_gpt2', '--num_seeds=16',
                 '--batch_size=8', '--length=64')
  size = num_parameters(configs.get('tiny_gpt2'))
  assert plan['mesh'] == {'seed': 8}
  # Two networks per chip, in whole tiles.
  assert 2 * 4 * size < plan['memory']['arguments'] < 2 * 4 * 1.1 * size


def test_eight_chips_share_the_parameters_of_a_fingerprint(tmp_path):
  plan = plan_of(tmp_path, '--program=fingerprint', '--config=tiny_llama2', '--batch_size=16',
                 '--length=64')
  config = configs.get('tiny_llama2')
  # The LM head is not read.
  size = num_parameters(config) - config.vocab_size * config.width
  assert plan['mesh'] == {'data': 1, 'fsdp': 8, 'tensor': 1}
  assert 4 / 8 * size < plan['memory']['arguments'] < 1.1 * 4 / 8 * size
  # As much as a few of the widest activations would take if one chip had all sequences.
  assert plan['memory']['temporaries'] < 8 * 4 * 16 * 64 * config.mlp_width


def test_a_step_that_the_compiler_refuses():
  pytest.importorskip('libtpu')
  code, out, error = run(
      '--config=nano_llama2', '--topology=v5e:1x1', '--batch_size=32', '--remat=none')
  assert code == 1 and 'does not fit: ' in out and '--remat=full' in out, error
