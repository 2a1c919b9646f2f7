"""What a step takes on a TPU slice: bytes read from a program's text, meshes, messages, and XLA's own compiler."""

import json
from pathlib import Path
import subprocess
import sys

import jax
import pytest

from bornbiased_jax import configs, scale
from bornbiased_jax.errors import InputError
from bornbiased_jax.initialization import init_params
from experiments import scale_plan
from experiments.scale_plan import CHIPS, GIB

# Five rounds, each of which gathers and multiplies a slice of a stack, beside a collective in two parts.
PROGRAM = '''HloModule step, is_scheduled=true

%inner (p.0: f32[5,8,128], p.1: s32[]) -> f32[8,128] {
  %p.0 = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %p.1 = s32[]{:T(128)} parameter(1)
  ROOT %slice = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%p.0, %p.1), dynamic_slice_sizes={1,8,128}
}

%fused (q.0: f32[5,8,128], q.1: s32[]) -> bf16[8,128] {
  %q.0 = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %q.1 = s32[]{:T(128)S(6)} parameter(1)
  %nested = f32[1,8,128]{2,1,0:T(8,128)} fusion(%q.0, %q.1), kind=kLoop, calls=%inner
  %flat = f32[8,128]{1,0:T(8,128)} bitcast(%nested)
  ROOT %cast = bf16[8,128]{1,0:T(8,128)(2,1)} convert(%flat)
}

%update (u.0: f32[5,8,128], u.1: f32[1,8,128], u.2: s32[]) -> f32[5,8,128] {
  %u.0 = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %u.1 = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)
  %u.2 = s32[]{:T(128)S(6)} parameter(2)
  ROOT %written = f32[5,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%u.0, %u.1, %u.2)
}

%part (r.0: f32[8,128]) -> f32[16,128] {
  %r.0 = f32[8,128]{1,0:T(8,128)S(1)} parameter(0)
  ROOT %gathered = f32[16,128]{1,0:T(8,128)} all-gather(%r.0), channel_id=7, dimensions={0}
}

%body (state: (s32[], f32[5,8,128])) -> (s32[], f32[5,8,128]) {
  %state = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%state), index=0
  %stack = f32[5,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %taken = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} fusion(%stack, %i), kind=kLoop, calls=%fused
  %fast = f32[8,128]{1,0:T(8,128)S(1)} convert(%taken)
  %first = f32[16,128]{1,0:T(8,128)S(1)} fusion(%fast), kind=kCustom, calls=%part
  %second = f32[16,128]{1,0:T(8,128)S(1)} fusion(%fast), kind=kCustom, calls=%part
  %sent = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) collective-permute-start(%fast)
  %got = f32[8,128]{1,0:T(8,128)S(1)} collective-permute-done(%sent)
  %more = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) collective-permute-start(%got)
  %row = f32[1,8,128]{2,1,0:T(8,128)S(1)} bitcast(%got)
  %new = f32[5,8,128]{2,1,0:T(8,128)} fusion(%stack, %row, %i), kind=kLoop, calls=%update
  ROOT %next = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}) tuple(%i, %new)
}

%condition (state.1: (s32[], f32[5,8,128])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}) parameter(0)
  %rounds = s32[]{:T(128)} constant(5)
  %j = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%j, %rounds), direction=LT
}

ENTRY %main (a: f32[5,8,128]) -> f32[5,8,128] {
  %a = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}) tuple(%zero, %a)
  %loop = (s32[]{:T(128)}, f32[5,8,128]{2,1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  %end = f32[5,8,128]{2,1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %twice = f32[5,8,128]{2,1,0:T(8,128)} add(%end, %end)
}
'''


def test_traffic_counts_loops_as_often_as_they_run():
  row = 4 * 8 * 128
  # In each round the slice that a nested fusion takes and the one that is updated; at the end two reads and a write.
  assert scale.traffic(PROGRAM) == scale.Traffic(5 * (row + row) + 3 * 5 * row, {
      'all-gather': 5 * 2 * row, 'collective-permute': 5 * 2 * row})


def test_a_loop_of_unknown_rounds_is_not_guessed():
  with pytest.raises(ValueError, match='rounds'):
    scale.traffic(PROGRAM.replace('direction=LT', 'direction=NE'))


@pytest.mark.parametrize('state, given, shape', [
    (8 * GIB, (None, None, 1), (8, 1, 1)), (9 * GIB, (None, None, 1), (1, 8, 1)), (9 * GIB, (None, None, 2), (4, 1, 2)),
    (1, (2, None, 1), (2, 4, 1)), (1, (None, 4, 1), (2, 4, 1)), (1, (2, 2, 2), (2, 2, 2)),
])
def test_what_no_flag_says_takes_the_devices_left(state, given, shape):
  assert scale_plan.mesh_shape(8, state, CHIPS['v5e'].hbm, *given) == shape


@pytest.mark.parametrize('given', [(3, None, 1), (None, None, 16), (1, 1, 1), (16, None, 1)])
def test_a_mesh_that_is_not_the_devices_is_refused(given):
  with pytest.raises(InputError, match='is not the 8 devices'):
    scale_plan.mesh_shape(8, 1, CHIPS['v5e'].hbm, *given)


@pytest.mark.parametrize('name', ['v5e', 'v5e:0x2', 'v5e:2x', 'v9:2x2', 'v5e:2x2x2x2', 'v5e:2x4 '])
def test_an_unknown_topology_is_one_line(name):
  with pytest.raises(InputError, match='as v5e:2x4'):
    scale_plan.topology_name(name)


def test_without_libtpu_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(scale_plan.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(InputError, match='pip install'):
    scale_plan.slice_of('v5e:2x4')


def test_roofline_is_the_slower_of_computing_and_moving():
  chip = CHIPS['v5e']
  assert scale_plan.roofline(2 * 197e12, 819e9, chip) == {'compute': 2, 'memory': 1, 'roofline': 2}
  assert scale_plan.roofline(197e12, 3 * 819e9, chip)['roofline'] == 3


MESSAGE = ('RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO '
           'temporaries (818.11G) exceeds available HBM (15.75G). HLO module: jit_train_step.\nSee '
           'https://openxla.org/xla/errors/error_1000 for more details.')


def refused(message, **settings):
  settings = {'batch_size': 24, 'accumulation': 2, 'remat': 'none', **settings}
  return scale_plan.verdict({'memory': scale_plan.refusal(message), 'fits': False,
                             'settings': settings, 'mesh': {'data': 4, 'fsdp': 1, 'tensor': 1}})


def test_a_step_that_does_not_fit_says_by_how_much_and_what_to_try():
  assert refused(MESSAGE) == ('does not fit: 818.1 GiB of 15.8 GiB a chip; try --remat=full, --accumulation=6, '
                              '--fsdp=4, more chips or a smaller --length')
  assert refused(MESSAGE, remat='full', accumulation=6).endswith('try --fsdp=4, more chips or a smaller --length')
  with pytest.raises(InputError, match='scoped vmem'):
    scale_plan.refusal('RESOURCE_EXHAUSTED: Ran out of memory in scoped vmem: 18.6M of 16.0M')


@pytest.mark.parametrize('value, text', [
    (0, '0 '), (999.96, '1000 '), (1e3, '1 k'), (12345678, '12.35 M'), (5e18, '5000 P'),
])
def test_amounts_for_eyes(value, text):
  assert scale_plan.engineering(value) == text


def run(*arguments):
  done = subprocess.run([sys.executable, '-m', 'experiments.scale_plan', *arguments], capture_output=True, text=True,
                        cwd=Path(__file__).parents[1])
  return done.returncode, done.stdout, done.stderr


def test_a_step_compiled_for_eight_chips(tmp_path):
  pytest.importorskip('libtpu')
  code, out, error = run('--config=tiny_llama2', '--topology=v5e:2x4', '--batch_size=16', '--length=256',
                         f'--output_dir={tmp_path}')
  assert code == 0 and 'fits: ' in out, error
  plan = json.loads((tmp_path / 'scale_plan.json').read_text())
  num_params = sum(leaf.size for leaf in jax.tree.leaves(
      jax.eval_shape(lambda: init_params(configs.get('tiny_llama2'), 0))))
  assert plan['mesh'] == {'data': 8, 'fsdp': 1, 'tensor': 1}
  # Parameters and two moments in float32, in whole tiles; the gradient is reduced in bfloat16 or float32.
  assert 12 * num_params < plan['memory']['arguments'] < 12.5 * num_params
  assert 2 * num_params < plan['collective_bytes']['all-reduce'] < 5 * num_params


def test_a_step_that_the_compiler_refuses():
  pytest.importorskip('libtpu')
  code, out, error = run('--config=nano_llama2', '--topology=v5e:1x1', '--batch_size=32', '--remat=none')
  assert code == 1 and 'does not fit: ' in out and '--remat=full' in out, error


def test_wrong_input_is_one_line():
  code, out, error = run('--topology=v5e:0x2')
  assert (code, out) == (2, '') and error.startswith('error: --topology') and error.count('\n') == 1
