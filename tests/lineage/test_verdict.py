"""Verdicts on two fingerprints, and the programs that report them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import alterations, fingerprints, verdict
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.storage import checkpoint, huggingface
from experiments import lineage, seedprint
from experiments.shared.command_line import resolve
from small_networks import ALIGNED, ALIGNED_GPT2, trained

CONFIG = configs.get('tiny_gpt2', num_layers=2, num_heads=2, width=32, mlp_width=64, vocab_size=50)
TOKENS, GAUSSIAN = Probe('tokens', 40, 6), Probe('gaussian', 40, 6)
ALIGNED_PROBE = Probe('gaussian', 1000, 8)


@pytest.fixture(scope='module')
def params():
  return init_params(CONFIG, 5)


def answers(hidden, inputs=None, name='a', width=32):
  inputs = np.zeros_like(hidden) if inputs is None else inputs
  return Fingerprint(hidden.astype(np.float32), inputs.astype(np.float32),
                     {'schema': 1, 'probe': {'hash': 'x'}, 'model': {}, 'about': {'name': name}})


def noise(seed, n=2000, width=32):
  return np.random.default_rng(seed).standard_normal((n, width))


MANY, SOME, FEW = (answers(noise(1, n), noise(8, n)) for n in (2000, 500, 50))


@pytest.mark.parametrize('a, b, expected, reason', [
    (MANY, answers(noise(1) + noise(2)), 'related', 'share an ancestor'),
    (MANY, answers(noise(2)), 'unrelated', 'compare_aligned'),
    (MANY, answers(noise(2) + 0.0126 * noise(1)), 'inconclusive', 'an accusation needs'),
    (SOME, answers(noise(2, 500)), 'inconclusive', 'use 1000 at least'),
    (MANY, answers(np.ones((2000, 32))), 'inconclusive', '32 of 32 channels are constant'),
    (FEW, FEW, 'inconclusive', 'use more than 64'),
    (answers(noise(1)), answers(noise(2, width=16)), 'not comparable',
     '32 and 16 residual channels'),
])
def test_verdicts(a, b, expected, reason):
  report, result = verdict.compare(a, b)
  assert report['verdict'] == expected, report
  assert reason in report['reasons'][-1]
  assert json.loads(json.dumps(report)) == report
  assert (result is None) == (report['z'] is None)


def test_neither_positions_nor_a_little_training_hide_a_shared_input():
  a, b = fingerprints.of_seeds(dataclasses.replace(CONFIG, positions='learned'), [1, 2], GAUSSIAN)
  assert np.abs(a.input_ND - b.input_ND).max() > 0.01 and verdict.input_is_shared(a, b)
  a, b = fingerprints.of_seeds(CONFIG, [1, 2], TOKENS, embedding_seed=9)
  change_ND = b.input_ND.std() * noise(3, 40)
  moved = lambda share: dataclasses.replace(b, input_ND=b.input_ND + share * change_ND)
  assert verdict.input_is_shared(a, moved(0.1)) and not verdict.input_is_shared(a, moved(0.3))


def test_what_both_read_is_taken_out_before_the_verdict():
  shared = noise(9)
  a, b = noise(1) + shared, noise(2) + shared
  assert verdict.compare(answers(a, noise(8)), answers(b))[0]['verdict'] == 'related'
  report, _ = verdict.compare(answers(a, shared), answers(b, shared))
  assert report['input_shared'] and report['verdict'] == 'unrelated'


def test_logits_accuse_nobody(params):
  both = [fingerprints.fingerprint(CONFIG, params, TOKENS, logit_ids=(7, 3, 49))] * 2
  report, result = verdict.compare(*both)
  assert report['verdict'] == 'inconclusive' and result is None
  assert 'related or not' in report['reasons'][0]


def test_fingerprints_of_different_probes_are_refused(params):
  a, b = (fingerprints.fingerprint(CONFIG, params, Probe('tokens', 40, 6, seed)) for seed in (1, 2))
  with pytest.raises(InputError, match='base read .* seed 1.* suspect .* seed 2'):
    verdict.compare(a, b)
  larger = dataclasses.replace(CONFIG, vocab_size=60)
  other = fingerprints.fingerprint(larger, init_params(larger, 1), Probe('tokens', 40, 6, 1))
  with pytest.raises(InputError, match='num_ids=50 lets both read the same'):
    verdict.compare(a, other)


def test_the_aligned_verdict():
  base = ALIGNED, trained(ALIGNED)
  hidden = alterations.rotate_channels(*base, jax.random.key(3))
  names = {'name': 'a'}, {'name': 'b'}
  report, result = verdict.compare_aligned(base, hidden, ALIGNED_PROBE, names)
  assert report['verdict'] == 'related' and report['z'] == result.z
  assert report['suspect'] == {'name': 'b'}
  assert json.loads(json.dumps(report)) == report
  assert report['embedding_fit'] > 0.99
  # Networks that agree without a common embedding are not accused.
  other = init_params(ALIGNED, 7)['embedding']
  mixed = base[1] | {'embedding': 0.5 * base[1]['embedding'] + other}
  report, _ = verdict.compare_aligned(base, (ALIGNED, mixed), ALIGNED_PROBE)
  assert report['verdict'] == 'inconclusive' and report['embedding_fit'] < 0.6 and report['z'] > 8
  assert 'trained on similar text' in report['reasons'][-1]
  report, _ = verdict.compare_aligned(base, (ALIGNED, init_params(ALIGNED, 7)), ALIGNED_PROBE)
  assert report['verdict'] == 'unrelated' and 'embeddings were replaced' in report['reasons'][1]
  assert abs(report['embedding_fit']) < 0.1
  gpt2 = ALIGNED_GPT2, init_params(ALIGNED_GPT2, 1)
  report, result = verdict.compare_aligned(base, gpt2, ALIGNED_PROBE)
  assert report['verdict'] == 'inconclusive' and not result
  assert 'cannot be aligned: rmsnorm' in report['reasons'][0]


def test_the_program_says_what_its_exit_code_says(tmp_path, capsys):
  settings = resolve(seedprint.SCALES, 'smoke', seedprint.SETTINGS, suspect='tiny_gpt2:1')
  with pytest.raises(SystemExit) as stop:
    seedprint.main(settings, tmp_path)
  assert stop.value.code == 0
  assert capsys.readouterr().out.startswith('RELATED: tiny_gpt2:1 and tiny_gpt2:1')
  report = json.loads((tmp_path / 'results.json').read_text())
  assert report['verdict'] == 'related' and report['reference']['p_value'] == 0.25
  assert 'the same network' in report['reasons'][-2]
  assert 'Of 3 fresh networks' in report['reasons'][-1]
  assert (tmp_path / 'figure.png').stat().st_size > 10000
  settings.align = True
  with pytest.raises(InputError, match='--references: only without --align'):
    seedprint.main(settings, tmp_path)
  settings.references = 0
  with pytest.raises(SystemExit) as stop:
    seedprint.main(settings, tmp_path)
  assert stop.value.code == 0
  report = json.loads((tmp_path / 'results.json').read_text())
  assert report['probe']['kind'] == 'gaussian'
  settings.suspect = 'tiny_gpt2:x'
  with pytest.raises(InputError, match="--suspect: tiny_gpt2:x: 'x' is not a seed"):
    seedprint.main(settings, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
  with pytest.raises(InputError, match='--base: is missing'):
    resolve(seedprint.SCALES, 'laptop', seedprint.SETTINGS)


def test_the_program_tells_the_unrelated_of_align(tmp_path, capsys):
  settings = resolve(seedprint.SCALES, 'smoke', seedprint.SETTINGS, num_sequences='1000',
                     references='0')
  with pytest.raises(SystemExit) as stop:
    seedprint.main(settings, tmp_path)
  assert stop.value.code == 5 and 'With --align ' in capsys.readouterr().out
  settings.length = 1025
  with pytest.raises(InputError, match='--length: 1025 exceeds the 1024 positions of tiny_gpt2:1'):
    seedprint.main(settings, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_the_zoo_is_compared_pair_by_pair(tmp_path, capsys):
  for name, seed in (('a', 1), ('b', 1), ('c', 2)):
    writer = checkpoint.Writer(tmp_path / 'zoo' / name)
    writer.save(0, init_params(CONFIG, seed), {'count': jnp.zeros(3)},
                checkpoint.as_metadata(config=CONFIG))
    writer.close()
  settings = resolve(lineage.SCALES, 'smoke', lineage.SETTINGS, num_sequences='1000')
  settings.networks = [str(tmp_path / 'zoo'), 'tiny_gpt2:1']
  lineage.main(settings, tmp_path / 'out')
  content = json.loads((tmp_path / 'out' / 'results.json').read_text())
  verdicts = {(row['base'][-3:], row['suspect'][-3:]): row['verdict'] for row in content['rows']}
  assert verdicts == {
      ('a@0', 'b@0'): 'related', ('a@0', 'c@0'): 'unrelated', ('b@0', 'c@0'): 'unrelated',
      **{(name, '2:1'): 'not comparable' for name in ('a@0', 'b@0', 'c@0')}}
  table = np.genfromtxt(tmp_path / 'out' / 'matrix.csv', delimiter=',', dtype=str)
  assert table.shape == (5, 5) and table[1, 2] == table[2, 1] and float(table[1, 2]) > 10
  assert (tmp_path / 'out' / 'figure.png').exists()
  settings.networks = ['tiny_gpt2:1']
  with pytest.raises(InputError, match='at least two different networks'):
    lineage.main(settings, tmp_path / 'out')
  settings.networks = ['tiny_gpt2:1', 'nowhere']
  with pytest.raises(InputError, match='nowhere: no such network'):
    lineage.main(settings, tmp_path / 'none')
  settings.networks = ['tiny_gpt2:1', 'tiny_gpt2:2', str(tmp_path / 'bytes')]
  llama = configs.get('tiny_llama2', vocab_size=257)
  huggingface.save(tmp_path / 'bytes', llama, init_params(llama, 1))
  message = '--num_ids: tiny_gpt2:1 knows 2048 .*bytes 257; give --num_ids=257'
  with pytest.raises(InputError, match=message):
    lineage.main(settings, tmp_path / 'none')
  assert not (tmp_path / 'none').exists()
