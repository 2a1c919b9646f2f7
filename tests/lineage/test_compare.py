"""Networks by name have the same verdict by every door."""

import jax
import pytest

from bornbiased_jax import lineage
from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import resolve
from bornbiased_jax.lineage.compare import common_probe, seed_of
from bornbiased_jax.lineage.evidence import features, signature
from bornbiased_jax.lineage.transforms import lossy
from bornbiased_jax.models.initialization import init_params

PROBE = Probe('tokens', 300, 4)
PAIR = 'tiny_llama2:3', 'tiny_llama2:4'


def rows(report):
  """The results up to rounding, which depends on where arrays lie in memory."""
  shown = lambda x: x if x is None else round(x, 3)
  return [(row['test'], shown(row['z']), shown(row['p_value']), shown(row['statistic']),
           row['reason']) for row in report['tests']]


def test_saved_signatures_give_the_same_numbers(tmp_path):
  named = lineage.compare_networks(*PAIR, PROBE, tmp_path / 'cache')
  path = str(tmp_path / 'base.safetensors')
  lineage.signature(PAIR[0], PROBE).save(path)
  # The probe is that of the file.
  saved = lineage.compare_networks(path, PAIR[1], Probe('tokens', 50, 2), tmp_path / 'cache')
  assert rows(saved) == rows(named) and saved['verdict'] == named['verdict']
  in_memory = lineage.judge(*(lineage.Subject(*lineage.load(name), PROBE) for name in PAIR))
  assert rows(in_memory) == rows(named)


def test_a_damaged_cache_is_made_anew(tmp_path):
  first = lineage.signature(PAIR[0], PROBE, tmp_path)
  kept, = tmp_path.glob('*.safetensors')
  kept.write_bytes(kept.read_bytes()[:1000])
  again = lineage.signature(PAIR[0], PROBE, tmp_path)
  assert (again.states.hidden_ND == first.states.hidden_ND).all() and again.digest == first.digest
  assert signature.load(kept).about['name'] == PAIR[0]


def test_smaller_vocabularies_decide_what_is_read():
  config, _ = lineage.load(PAIR[0])
  small = resolve.load_config('tiny_gpt2:1')
  assert common_probe(PROBE, [], [config, small]).num_ids is None
  wide = resolve.load_config('nano_llama2:1')
  assert common_probe(PROBE, [], [config, wide]).num_ids == config.vocab_size


def test_the_seed_of_a_changed_network_is_recognized():
  config, params = lineage.load('tiny_llama2:2')

  noisy = lossy.add_noise(config, params, jax.random.key(0), 0.5)
  assert seed_of(features.of_network(*noisy)) == 2
  assert seed_of(features.of_network(config, init_params(config, 12345))) is None


def test_old_files_are_refused_in_one_line(tmp_path):
  (tmp_path / 'old.npz').write_bytes(b'PK')
  with pytest.raises(InputError, match='compare the network itself'):
    lineage.signature(str(tmp_path / 'old.npz'), PROBE)
