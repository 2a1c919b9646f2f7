"""Benchmarks go on where they were stopped, and a row is the ratio it says."""

import functools
import json
import time

import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import attention, flops
from bornbiased_jax.training.recipe import Recipe
from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import ranks, step_parts, streaming, timing
from experiments.shared import results
from experiments.shared.settings import resolve
import programs


def test_alternatives_run_in_turn_and_ratios_are_of_the_same_round():
  called = []
  alternatives = {name: lambda name=name: called.append(name) or time.sleep(0.001) for name in 'ab'}
  seconds = timing.in_turn(alternatives, 3)
  assert ''.join(called) == 'ab' * 4
  assert {name: len(values) for name, values in seconds.items()} == {'a': 3, 'b': 3}
  assert timing.spread([3.0, 1.0, 2.0]) == {'median': 2.0, 'quartiles': [1.5, 2.5]}


def test_benchmarks_that_were_stopped_go_on_with_the_next(tmp_path, monkeypatch):
  called = []

  def measured(name):
    called.append(name)
    if called == ['kendall', 'statistics']:
      raise KeyboardInterrupt
    return [{'benchmark': name}]

  monkeypatch.setattr(results, 'WRITE_INTERVAL_S', 0)
  monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  for name in ('kendall', 'statistics'):
    monkeypatch.setitem(benchmark.BENCHMARKS, name, functools.partial(measured, name))
  settings = resolve(benchmark.Settings, words=['kendall', 'statistics'])
  with pytest.raises(KeyboardInterrupt):
    programs.main(benchmark, settings, tmp_path)
  programs.main(benchmark, settings, tmp_path)
  content = json.loads((tmp_path / 'results.json').read_text())
  assert called == ['kendall', 'statistics', 'statistics'] and content['complete']
  assert content['rows'] == [{'name': name, 'rows': [{'benchmark': name}]}
                             for name in ('kendall', 'statistics')]
  assert (tmp_path / 'table.md').exists() and (tmp_path / 'figure.png').exists()


def test_a_name_that_is_no_benchmark_is_refused(tmp_path):
  with pytest.raises(InputError, match="'sleep' is no benchmark; there are "):
    programs.main(benchmark, resolve(benchmark.Settings, words=['sleep']), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('make', [
    lambda: ranks.tau(50, 2, rounds=2),
    lambda: ranks.calibrated(50, 8, rounds=2),
    lambda: ranks.as_published(50, 8, rounds=2),
], ids=['tau', 'calibrated', 'published'])
def test_a_row_is_the_ratio_it_says(make, monkeypatch):
  """With a clock on which the peer takes twice as long."""
  def in_turn(alternatives, rounds):
    for run in alternatives.values():
      run()
    names = list(alternatives)
    return {name: np.full(rounds, 1.0 if name == 'ours' else 2.0) for name in names}

  monkeypatch.setattr(timing, 'in_turn', in_turn)
  row = make()
  factor = row.get('to_pairs', 1) / row.get('extrapolated_from_pairs', 1)
  assert row['peer_over_ours']['median'] == pytest.approx(2 * factor)


@pytest.mark.parametrize('name, changes', [('nano_llama2', {'num_kv_heads': 4}), ('tiny_gpt2', {})])
def test_the_products_of_a_step_are_those_that_are_counted(name, changes):
  config = configs.get(name, **changes)
  counts = step_parts.products(config, batch_size=3, length=256)
  products = sum(2 * M * D * F * count for (M, D, F), count in counts.items())
  weighted = 2 * 2 * config.num_layers * 256**2 * config.num_heads * config.head_size
  assert products == 3 * (flops.forward_flops(config, 256, num_logits=256) - weighted)


@pytest.mark.slow
def test_parts_of_a_step():
  config = configs.get('tiny_gpt2', num_layers=1, width=16, mlp_width=32, vocab_size=50)
  recipe = Recipe(num_steps=9, batch_size=2, length=8, warmup_steps=1)
  found = step_parts.shares(config, recipe, attention.plain, lambda: 0, rounds=2)
  assert found['share_of_step'].keys() == {'products', 'attention', 'optimizer'}
  assert found['optimizer_floor']['median'] > 0


@pytest.mark.slow
def test_a_killed_process_goes_on_from_the_layer_it_was_at(tmp_path):
  shape = streaming.SHAPE | dict(vocab_size=40, hidden_size=32, intermediate_size=48, head_dim=8,
                                 num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2)
  row = streaming.row(tmp_path, shape, dict(num_sequences=24, length=3))
  # It was killed in the third of six layers, and began that layer again.
  assert row['share_of_layers'] == pytest.approx(4 / 6)
  kernels = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48
  assert row['parameters'] == 6 * (kernels + 2 * 32) + 40 * 32 + 32
  assert row['bytes_on_disk'] > 2 * row['parameters']
  assert row['flops'] == 24 * 3 * 6 * 2 * (kernels + 2 * 3 * 32)
