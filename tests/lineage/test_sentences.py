"""What else could make networks agree is noticed, and what could not is left out."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.lineage import alterations, dossiers, doubts, inventory, verdict
from bornbiased_jax.models.initialization import init_params
from small_networks import ALIGNED, ALIGNED_GPT2

POSITIONS = dataclasses.replace(ALIGNED_GPT2, positions='learned')
PROBE = Probe('tokens', 200, 8)


def dossier(config, params):
  return dossiers.take(config, params, PROBE)


def said(a, b):
  return ' '.join(doubts.sentences(a, b, inventory.shared(a.tensors, b.tensors),
                                   doubts.order_has_meaning(a, b)))


@pytest.mark.parametrize('config', [ALIGNED, POSITIONS])
def test_nothing_is_doubtful_about_independent_networks(config):
  assert said(*(dossier(config, init_params(config, seed)) for seed in (1, 2))) == ''


def test_shared_positions_and_embeddings_are_named():
  a, b = (init_params(POSITIONS, seed) for seed in (1, 2))
  table = {'position_embedding': a['position_embedding']}
  assert 'table of positions' in said(dossier(POSITIONS, a), dossier(POSITIONS, b | table))
  half = jnp.concatenate((a['embedding'][:150], b['embedding'][150:]))
  partly = dossier(POSITIONS, b | {'embedding': half})
  assert 'one public embedding' in said(dossier(POSITIONS, a), partly)


def test_other_vocabularies_and_depths_are_named():
  """Each has a sentence of its own, which says what is compared instead."""
  config = dataclasses.replace(ALIGNED, vocab_size=250, num_layers=3)
  a, b = (dossiers.take(each, init_params(each, 1), dataclasses.replace(PROBE, num_ids=200))
          for each in (ALIGNED, config))
  vocabularies, depths = doubts.differences(a, b)
  assert vocabularies == ('Their vocabularies have 300 and 250 ids, and both read random ids below '
                          '200.')
  assert depths.startswith('They have 2 and 3 layers, so that hidden features of every layer are')
  assert f'{vocabularies} {depths}' in said(a, b)
  assert doubts.differences(a, dataclasses.replace(b, sketch=None)) == [vocabularies]
  assert doubts.differences(dataclasses.replace(a, tokens=b.tokens), b) == [depths]
  assert doubts.differences(a, a) == []


def test_sorted_channels_are_noticed_if_both_have_them():
  def ordered(seed):
    params = init_params(ALIGNED_GPT2, seed)
    mean_D = dossier(ALIGNED_GPT2, params).tokens.hidden_ND.mean(axis=0)
    return dossier(*alterations.order_channels(ALIGNED_GPT2, params, jnp.argsort(mean_D)))

  a, b = ordered(1), ordered(2)
  assert 'as if they had been sorted' in said(a, b)
  assert said(a, dossier(ALIGNED_GPT2, init_params(ALIGNED_GPT2, 3))) == ''


def test_answers_that_are_logits_have_channels_of_their_own():
  made = [dossier(ALIGNED, init_params(ALIGNED, seed)) for seed in (1, 2)]
  few = [dataclasses.replace(each, tokens=dataclasses.replace(
      each.tokens, hidden_ND=each.tokens.hidden_ND[:, :3])) for each in made]
  assert not doubts.channels_are_sorted(*few)


def test_heads_of_one_channel_have_no_order():
  config = dataclasses.replace(POSITIONS, num_heads=16, num_kv_heads=16, width=16,
                               head_size=1)
  a, b = (dossier(config, init_params(config, seed)) for seed in (1, 2))
  assert config.head_size == 1 and 'value order' not in doubts.order_has_meaning(a, b)
  assert 'value order' not in doubts.patterns_of_orders(a, b)
  heard = {each['witness']: each['obstacle'] for each in verdict.compare(a, b)['witnesses']}
  assert 'but one' in heard['value order'] and heard['unit order'] is None


def test_outlier_channels_are_counted():
  params = init_params(ALIGNED, 1)
  scale = params['final_norm']['scale'].at[jnp.array([3, 5])].multiply(100.0)
  wide = dossier(ALIGNED, params | {'final_norm': {'scale': scale}})
  assert doubts.outliers(wide) == 2
  assert '2 of the channels of the suspect have' in said(
      dossier(ALIGNED, init_params(ALIGNED, 2)), wide)


@pytest.mark.parametrize('parts, order', [
    (('up', 'gate', 'down'), 'unit order'), (('value', 'output'), 'value order')])
@pytest.mark.parametrize('least', [0, 0.05])
def test_one_mask_takes_the_order_of_what_it_masks_from_the_evidence(parts, order, least):
  def masked(seed):
    params = init_params(ALIGNED, seed)
    blocks = dict(params['blocks'])
    for i, part in enumerate(parts):
      kernel = blocks[part]['kernel']
      kept = jax.random.uniform(jax.random.key(i), kernel.shape) < 0.1
      blocks[part] = {'kernel': jnp.where(kept, kernel, least * kernel)}
    return dossier(ALIGNED, params | {'blocks': blocks})

  a, b = masked(1), masked(2)
  assert doubts.order_has_meaning(a, b).keys() == {order}
  assert f'The {order} is no evidence here' in said(a, b)
  assert doubts.order_has_meaning(a, dossier(ALIGNED, init_params(ALIGNED, 2))) == {}
