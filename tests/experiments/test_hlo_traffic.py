"""The bytes that a TPU program moves, as read from its text."""

import pytest

from experiments.shared import hlo_traffic

# Five rounds, each of which gathers and multiplies a slice of a stack, beside a
# collective in two parts. Its lines are as long as XLA makes them.
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
'''  # noqa: E501


def test_traffic_counts_loops_as_often_as_they_run():
  row = 4 * 8 * 128
  # In each round the slice that a nested fusion takes and the one that is updated;
  # at the end two reads and a write.
  assert hlo_traffic.traffic(PROGRAM) == hlo_traffic.Traffic(5 * (row + row) + 3 * 5 * row, {
      'all-gather': 5 * 2 * row, 'collective-permute': 5 * 2 * row})


def test_an_array_of_unknown_size_is_not_guessed():
  with pytest.raises(ValueError, match='f8e4m3fn'):
    hlo_traffic.traffic(PROGRAM.replace('bf16', 'f8e4m3fn'))


def test_a_loop_of_unknown_rounds_is_not_guessed():
  with pytest.raises(ValueError, match='rounds'):
    hlo_traffic.traffic(PROGRAM.replace('direction=LT', 'direction=NE'))
