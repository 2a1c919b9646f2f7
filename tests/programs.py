"""The programs of experiments/, each a module or a package with __main__, and each at its smallest.

A new program is one row of SMALL: `test_programs` runs it, stops it, goes on and draws it again.
"""

import importlib
import inspect
import json
import string
from typing import NamedTuple

from experiments import NAMES, source
from experiments.shared.results import Results
from experiments.shared.settings import resolve

FILES = {name: source(name) for name in NAMES}
# Those that have settings, scales and a folder of results.
EXPERIMENTS = sorted(name for name, path in FILES.items()
                     if 'has_folder=False' not in path.read_text())


class Small(NamedTuple):
  """How many rows a program makes, and of which words and flags beside --scale=smoke.

  {name} in these is the folder of what another program makes.
  """

  num_rows: int
  flags: dict[str, str] = {}
  words: tuple[str, ...] = ()


# Most read the same random networks, and others train or read the same small ones, so that these
# are compiled once.
SHARED = dict(seeds='0-2', num_sequences='40', embedding_seed='0')
SIZE = 'num_layers=2,num_heads=2,width=64,mlp_width=96'
TRAINED = dict(config=f'tiny_llama2,{SIZE}', batch_size='2', length='16')
# Random networks of the architecture that is trained, which has the ids of bytes.
OF_BYTES = f'tiny_llama2,{SIZE},vocab_size=257'
# More than twice the width are read, and so the networks can be compared.
READER = dict(study='{training_study}', num_sequences='200')

SMALL = {
    'ablation': Small(9, SHARED),
    'activation': Small(10),
    'adversary': Small(2),
    'amplification': Small(6, dict(lengths='8')),
    'attention_sink': Small(6, dict(factors='positions')),
    'baselines': Small(72, READER | dict(
        methods='Verdict,SeedPrint,MLP units,REEF,PCS,norm gains')),
    'born_unbiased': Small(8, dict(config='tiny_gpt2,mlp_width=256,num_heads=2,width=64',
                                    batch_size='2', num_steps='3', keep_steps='none')),
    'calibrate': Small(3, dict(config=OF_BYTES, num_sequences='200',
                               probes='gaussian,verdict,order')),
    'contraction': Small(3, SHARED),
    'coordinates': Small(3, SHARED | dict(depths='4')),
    'experts': Small(3, SHARED | dict(config='tiny_gpt2')),
    'forgetting': Small(20, dict(config=f'tiny_llama2,{SIZE}', num_sequences='200')),
    'intra_sequence': Small(7, SHARED | dict(num_sequences='20', lengths='8')),
    'layer_theory': Small(6, SHARED),
    'persistence': Small(9, READER),
    'pretrain': Small(0, TRAINED),
    'real_network': Small(11, dict(network=f'{OF_BYTES}:1', steps='1', seeds='2',
                                  num_sequences='200')),
    'real_text': Small(6, SHARED | dict(config='tiny_gpt2')),
    'robustness': Small(4, dict(config=OF_BYTES, num_sequences='200')),
    'scaling': Small(6, SHARED | dict(large_sequences='40')),
    'seed_sweep': Small(6, SHARED),
    'seedprint_tables': Small(12, READER),
    'spectra': Small(12, dict(changes='noise 20 %,300 more steps')),
    'text_sinks': Small(14, TRAINED | dict(lengths='16,12', position='4', afterwards='mask')),
    'through_training': Small(8, {}, ('{training_study}/english/seed_42',
                                      '{training_study}/english/seed_43')),
    'trained_experts': Small(12, dict(balances='10', seeds='42,43')),
    'training_study': Small(0, TRAINED | dict(seeds='42,43')),
}


def load(name):
  """The module of a program."""
  return importlib.import_module(
      f'experiments.{name}' + ('.__main__' if source(name).name == '__main__.py' else ''))


def run_small(name, directory, folder_of):
  """Runs a program at its smallest; `folder_of` another program is where that ran so."""
  _, flags, words = SMALL[name]
  words = filled(dict(enumerate(words)), folder_of).values()
  return run(name, directory, *words, **filled(flags, folder_of))


def filled(texts, folder_of):
  """Texts with the folders of the programs that they name in braces."""
  folders = {name: str(folder_of(name)) for text in texts.values()
             for _, name, *_ in string.Formatter().parse(text) if name}
  return {key: text.format_map(folders) for key, text in texts.items()}


def run(name, directory, *words, **flags):
  """What a program writes to results.json at its smallest scale, with these words and flags."""
  program = load(name)
  main(program, resolve(program.Settings, 'smoke', words, **flags), directory)
  return results_of(directory)


def main(program, settings, directory):
  """Runs a program in a folder, as `program.run` and `program.measure` do."""
  name = program.__name__.removeprefix('experiments.').removesuffix('.__main__')
  has_rows = 'results' in inspect.signature(program.main).parameters
  program.main(settings, Results(directory, name, settings) if has_rows else directory)


def results_of(directory):
  return json.loads((directory / 'results.json').read_text())


def stop(directory, num_rows):
  """Leaves of a complete run what it had when it had so many rows, and marks these as kept."""
  content = results_of(directory)
  rows = [row | {'kept': True} for row in content['rows'][:num_rows]]
  names = 'experiment', 'settings', 'environment', 'run', 'inputs'
  kept = {name: content[name] for name in names if name in content}
  kept |= {'complete': False, 'rows': rows, 'summary': []}
  (directory / 'results.json').write_text(json.dumps(kept))
