"""Experts that are followed through training: shares, their order, and pairs of seeds."""

import dataclasses

import numpy as np
import pytest

from experiments import trained_experts
from experiments.shared.settings import resolve
from programs import results_of

EVEN = np.full((1, 4), 0.25)


def test_shares_are_compared_with_those_of_birth():
  birth = np.array([[0.7, 0.2, 0.1, 0.0], [0.1, 0.2, 0.3, 0.4]])
  now = np.array([[0.1, 0.2, 0.7, 0.0], [0.0, 0.0, 0.1, 0.9]])
  found = trained_experts.described_shares(now, birth)
  # Ranks 2 3 4 1 and 4 3 2 1, of which Σ d² is 8; then 1.5 1.5 3 4 and 1 2 3 4, by hand.
  ties = np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3, 4])[0, 1]
  assert found['birth_rank'] == pytest.approx((1 - 6 * 8 / 60 + ties) / 2)
  assert (found['dead'], found['same_busiest']) == (1.5, 0.5)
  assert found['busiest'] == pytest.approx(0.8)
  assert trained_experts.described_shares(EVEN, EVEN)['birth_rank'] == 0


def test_differences_are_paired_by_seed():
  rows = [{'init': init, 'balance': 0.0, 'seed': seed, 'step': 3} | dict.fromkeys(
      trained_experts.MEASURES, value) for init, values in (
          ('gpt2', {1: 1.0, 2: 5.0, 3: 9.0}), ('centred', {3: 9.5, 2: 5.5, 1: 1.5}))
          for seed, value in values.items()]
  first, second = trained_experts.summarize(rows)
  assert first['busiest_difference'] == 0
  assert second['busiest_difference'] == 0.5 and second['busiest_difference_ci95'] == 0
  assert second['busiest_ci95'] > 5


def test_arms_differ_in_their_birth_and_balance_loss():
  arms = trained_experts.arms_of(resolve(trained_experts.Settings, 'smoke', balances='0,10'))
  assert {(arm.init_scheme, arm.balance): key for key, arm in arms.items()} == {
      (init, balance): (init, balance) for init in ('gpt2', 'centred') for balance in (0.0, 10.0)}
  first, *others = (dataclasses.replace(arm, init_scheme='gpt2', balance=0.0)
                    for arm in arms.values())
  assert others == [first] * 3


@pytest.mark.slow
def test_the_balance_loss_balances(small):
  results = results_of(small('trained_experts'))
  of = {(row['init'], row['step']): row for row in results['summary'] if row['balance'] == 10}
  assert of['gpt2', 0]['birth_rank'] == 1
  assert of['gpt2', 6]['busiest'] < of['gpt2', 0]['busiest']
  for row in results['rows']:
    np.testing.assert_allclose(np.sum(row['share'], axis=-1), 1, rtol=1e-6)
