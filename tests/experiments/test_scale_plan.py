"""What a program takes on a TPU slice: meshes, messages, and what XLA's own compiler says."""

import json
import os
from pathlib import Path
import subprocess
import sys
import time

from absl import flags
import jax
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flops
from bornbiased_jax.models.initialization import init_params
from experiments import scale_plan
from experiments.shared import chips, scale_programs
from experiments.shared.chips import CHIPS, GIB


@pytest.mark.parametrize('state, given, shape', [
    (8 * GIB, (None, None, 1), (8, 1, 1)), (9 * GIB, (None, None, 1), (1, 8, 1)),
    (9 * GIB, (None, None, 2), (4, 1, 2)), (1, (2, None, 1), (2, 4, 1)),
    (1, (None, 4, 1), (2, 4, 1)), (1, (2, 2, 2), (2, 2, 2)),
])
def test_what_no_flag_says_takes_the_devices_left(state, given, shape):
  assert scale_programs.mesh_shape(8, state, CHIPS['v5e'].hbm, *given) == shape


@pytest.mark.parametrize('given', [(3, None, 1), (None, None, 16), (1, 1, 1), (16, None, 1)])
def test_a_mesh_that_is_not_the_devices_is_refused(given):
  with pytest.raises(InputError, match='is not the 8 devices'):
    scale_programs.mesh_shape(8, 1, CHIPS['v5e'].hbm, *given)


@pytest.mark.parametrize('name', ['v5e', 'v5e:0x2', 'v5e:2x', 'v9:2x2', 'v5e:2x2x2x2', 'v5e:2x4 '])
def test_an_unknown_topology_is_one_line(name):
  with pytest.raises(InputError, match='as v5e:2x4'):
    scale_plan.topology_name(name)


def test_without_libtpu_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(chips.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(InputError, match='pip install'):
    chips.slice_of('v5e:2x4')


def test_roofline_is_the_slower_of_computing_and_moving():
  chip = CHIPS['v5e']
  assert chips.roofline(2 * 197e12, 819e9, chip) == {'compute': 2, 'memory': 1, 'roofline': 2}
  assert chips.roofline(197e12, 3 * 819e9, chip)['roofline'] == 3


MESSAGE = ('RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total '
           'memory required for HLO temporaries (818.11G) exceeds available HBM (15.75G). '
           'HLO module: jit_train_step.\nSee https://openxla.org/xla/errors/error_1000 for more '
           'details.')


def refused(message, **settings):
  settings = {'program': 'train', 'batch_size': 24, 'accumulation': 2, 'remat': 'none', **settings}
  return scale_plan.verdict({'memory': chips.refusal(message), 'fits': False,
                             'settings': settings, 'mesh': {'data': 4, 'fsdp': 1, 'tensor': 1}})


def test_a_step_that_does_not_fit_says_by_how_much_and_what_to_try():
  assert refused(MESSAGE) == (
      'does not fit: 818.1 GiB of 15.8 GiB per chip; try --remat=full, --accumulation=6, --fsdp=4, '
      'more chips or a smaller --length')
  assert refused(MESSAGE, remat='full', accumulation=6).endswith(
      'try --fsdp=4, more chips or a smaller --length')
  with pytest.raises(InputError, match='scoped vmem'):
    chips.refusal('RESOURCE_EXHAUSTED: Ran out of memory in scoped vmem: 18.6M of 16.0M')


@pytest.mark.parametrize('settings, mesh, advice', [
    (dict(program='sweep', num_seeds=16, batch_size=64), {'seed': 8},
     '--batch_size=32, --num_seeds=8 or '),
    (dict(program='sweep', num_seeds=8, batch_size=1), {'seed': 8}, ''),
    (dict(program='fingerprint', batch_size=24), {'data': 1, 'fsdp': 8, 'tensor': 1},
     '--batch_size=8, more chips or '),
    (dict(program='fingerprint', batch_size=8), {'data': 8, 'fsdp': 1, 'tensor': 1},
     '--fsdp=8, more chips or '),
])
def test_what_takes_less_memory(settings, mesh, advice):
  assert scale_plan.advice(settings, mesh) == f'{advice}a smaller --length'


@pytest.mark.parametrize('program, given, message', [
    ('sweeps', {}, "--program: 'sweeps' is not one of train, sweep, fingerprint"),
    ('sweep', {'fsdp': '2'}, '--fsdp: not with --program=sweep, but with train, fingerprint'),
    ('train', {'num_seeds': '8'}, '--num_seeds: not with --program=train, but with sweep'),
    ('fingerprint', {'dtype': 'bfloat16'},
     '--dtype: not with --program=fingerprint, but with train, sweep'),
    ('sweep', {'num_seeds': '0'}, "--num_seeds: '0' is not a whole number from 1"),
    ('sweep', {'num_seeds': '6'}, '--num_seeds=6 .* choose a multiple of 4'),
    ('fingerprint', {'batch_size': '6'}, '--batch_size=6 cannot .* choose a multiple of 4'),
    ('fingerprint', {'fsdp': '3'}, '--fsdp=3 .* is not the 4 devices'),
    ('fingerprint', {'length': '5000'}, '--length=5000 exceeds the 4096 positions'),
    ('train', {'batch_size': 'none'}, '--batch_size: is missing: --program=train needs'),
    ('train', {'batch_size': 'auto'}, "--batch_size: 'auto' is not a whole number .* nor 'none'"),
    ('train', {'batch_size': '4', 'accumulation': '2'},
     '--accumulation=2 parts .* choose a multiple of 8'),
])
def test_a_mistake_names_its_flag(program, given, message):
  with pytest.raises(InputError, match=message):
    settings = scale_plan.resolve(program, given)
    getattr(scale_programs, program)(settings, CHIPS['v5e'], jax.devices())


def test_what_is_left_to_the_program_is_what_the_package_chooses():
  chosen = lambda program, **given: getattr(scale_programs, program)(
      scale_plan.resolve(program, given), CHIPS['v5e'], jax.devices()).settings
  sweep, fingerprint = chosen('sweep'), chosen('fingerprint', length='1024')
  assert (sweep['num_seeds'], sweep['batch_size'], sweep['length']) == (4, 16, 1024)
  assert fingerprint['batch_size'] == 4 * 16
  assert chosen('train', config='tiny_llama2')['length'] == 2048


def test_the_floor_under_what_the_last_position_needs():
  config = configs.get('tiny_llama2')
  whole, before = (flops.forward_flops(configs.get('tiny_llama2', num_layers=n), 64, 1)
                   for n in (4, 3))
  least = scale_programs.last_position_flops(config, 64, 1)
  assert before < least < whole
  assert least - before == 2 * 2 * 64 * 128 * 128


@pytest.mark.parametrize('value, text', [
    (0, '0 '), (999.96, '1000 '), (1e3, '1 k'), (12345678, '12.35 M'), (5e18, '5000 P'),
])
def test_amounts_for_eyes(value, text):
  assert scale_plan.engineering(value) == text


def test_a_plan_says_how_it_came_about(tmp_path, monkeypatch):
  given = flags.FlagValues()
  for name, value in {'program': 'train', 'output_dir': str(tmp_path),
                      **dict.fromkeys(scale_plan.NAMES)}.items():
    flags.DEFINE_string(name, value, '', flag_values=given)
  given(['scale_plan'])
  monkeypatch.setattr(flags, 'FLAGS', given)
  monkeypatch.setattr(scale_plan, 'make_plan', lambda settings: time.sleep(0.1) or {'fits': True})
  monkeypatch.setattr(scale_plan, 'describe', str)
  with pytest.raises(SystemExit):
    scale_plan.main()
  made = json.loads((tmp_path / 'scale_plan.json').read_text())
  assert made['run'].keys() == {'command', 'commit', 'started', 'seconds'}
  assert made['fits'] and 0.1 <= made['run']['seconds'] < 10


def run(*arguments):
  # The compiler for TPUs refuses the flags by which tests compile for a CPU.
  done = subprocess.run([sys.executable, '-m', 'experiments.scale_plan', *arguments],
                        capture_output=True, text=True, cwd=Path(__file__).parents[2],
                        env=os.environ | {'XLA_FLAGS': ''})
  return done.returncode, done.stdout, done.stderr


def num_params(config):
  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: init_params(config, 0))))


def plan_of(directory, *arguments):
  pytest.importorskip('libtpu')
  code, out, error = run('--topology=v5e:2x4', f'--output_dir={directory}', *arguments)
  assert code == 0 and 'fits: ' in out, error
  return json.loads((directory / 'scale_plan.json').read_text())


def test_a_step_compiled_for_eight_chips(tmp_path):
  plan = plan_of(tmp_path, '--config=tiny_llama2', '--batch_size=16', '--length=256')
  size = num_params(configs.get('tiny_llama2'))
  assert plan['mesh'] == {'data': 8, 'fsdp': 1, 'tensor': 1}
  # Parameters and two moments are float32 in whole tiles. The gradient is reduced
  # in bfloat16 or float32.
  assert 12 * size < plan['memory']['arguments'] < 12.5 * size
  assert 2 * size < plan['collective_bytes']['all-reduce'] < 5 * size


def test_networks_of_a_sweep_never_talk(tmp_path):
  plan = plan_of(tmp_path, '--program=sweep', '--config=tiny_gpt2', '--num_seeds=16',
                 '--batch_size=8', '--length=64')
  size = num_params(configs.get('tiny_gpt2'))
  assert plan['mesh'] == {'seed': 8}
  assert sum(plan['collective_bytes'].values()) < 1000
  # Two networks per chip, in whole tiles.
  assert 2 * 4 * size < plan['memory']['arguments'] < 2 * 4 * 1.1 * size


def test_eight_chips_share_the_parameters_of_a_fingerprint(tmp_path):
  plan = plan_of(tmp_path, '--program=fingerprint', '--config=tiny_llama2', '--batch_size=16',
                 '--length=64')
  config = configs.get('tiny_llama2')
  # The LM head is not read.
  size = num_params(config) - config.vocab_size * config.width
  assert plan['mesh'] == {'data': 1, 'fsdp': 8, 'tensor': 1}
  assert 4 / 8 * size < plan['memory']['arguments'] < 1.1 * 4 / 8 * size
  # As much as a few of the widest activations would take if one chip had all sequences.
  assert plan['memory']['temporaries'] < 8 * 4 * 16 * 64 * config.mlp_width


def test_a_step_that_the_compiler_refuses():
  pytest.importorskip('libtpu')
  code, out, error = run(
      '--config=nano_llama2', '--topology=v5e:1x1', '--batch_size=32', '--remat=none')
  assert code == 1 and 'does not fit: ' in out and '--remat=full' in out, error


def test_wrong_input_is_one_line():
  code, out, error = run('--topology=v5e:0x2')
  assert (code, out) == (2, '') and error.startswith('error: --topology') and error.count('\n') == 1
