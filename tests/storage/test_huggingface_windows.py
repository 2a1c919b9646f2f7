"""Layers have the windows that `transformers` gives them, or config.json is refused."""

import pytest

from bornbiased_jax.storage import huggingface
from directories import minimal_config, refusal, write_config

FULL, SLIDING = 'full_attention', 'sliding_attention'
MIXED = [SLIDING, FULL, FULL, SLIDING, SLIDING, FULL, SLIDING]
# As many layers as MIXED has.
CASES = [
    ('llama', {}), ('llama', dict(sliding_window=5)), ('olmo2', {}),
    ('mistral', {}), ('mistral', dict(sliding_window=None)), ('mistral', dict(sliding_window=7)),
    ('phi3', {}), ('phi3', dict(sliding_window=9)),
    *((family, entries) for family in ('qwen2', 'qwen3') for entries in (
        {}, dict(sliding_window=5), dict(use_sliding_window=True),
        *(dict(use_sliding_window=True, sliding_window=5, max_window_layers=n)
          for n in (-1, 0, 3, 6, 7)),
        dict(use_sliding_window=True, sliding_window=None, max_window_layers=0),
        dict(use_sliding_window=True, sliding_window=6, layer_types=MIXED, max_window_layers=0),
        dict(layer_types=[FULL] * 7))),
    *((family, entries) for family in ('gemma2', 'gemma3_text', 'olmo3') for entries in (
        {}, dict(sliding_window=5), dict(sliding_window=5, layer_types=MIXED),
        dict(layer_types=[FULL] * 7), dict(layer_types=[SLIDING] * 7), dict(layer_types=None))),
    *(('gemma3_text', dict(sliding_window_pattern=n)) for n in (1, 2, 7, 8)),
]


@pytest.mark.parametrize('family, entries', CASES, ids=str)
def test_windows_are_those_of_transformers(family, entries, transformers, tmp_path):
  stored = minimal_config(family, num_hidden_layers=7)
  theirs = transformers.AutoConfig.for_model(**stored | entries)
  if family in ('mistral', 'phi3'):
    expected = (theirs.sliding_window,) * 7
  else:
    types = getattr(theirs, 'layer_types', None) or [FULL] * 7
    expected = tuple(theirs.sliding_window if name == SLIDING else None for name in types)
  write_config(tmp_path, stored | entries)
  config = huggingface.load_config(tmp_path)
  assert (config.windows or (None,) * 7) == expected


@pytest.mark.parametrize('family, entries, words', [
    ('gemma2', dict(layer_types=MIXED[1:]), 'layer_types has 6 entries for 7 layers'),
    ('gemma2', dict(layer_types=[]), 'layer_types has 0 entries for 7 layers'),
    ('gemma2', dict(layer_types='full_attention'), 'must be a JSON array'),
    ('gemma2', dict(layer_types=[FULL] * 6 + ['chunked_attention']),
     "layer_types with 'chunked_attention' is not supported; 'full_attention' and"),
    ('gemma2', dict(layer_types=[[FULL]] * 7), "layer_types with ['full_attention'] is not"),
    ('gemma2', dict(sliding_window=None), 'sliding_window=None must be a whole number'),
    ('olmo3', dict(sliding_window=0), 'sliding_window=0 must be a whole number'),
    ('olmo3', dict(sliding_window=True), 'sliding_window=True must be a whole number'),
    ('mistral', dict(sliding_window='8'), "sliding_window='8' must be a whole number"),
    ('phi3', dict(sliding_window=4.0), 'sliding_window=4.0 must be a whole number'),
    ('mistral', dict(use_sliding_window=True), 'use_sliding_window=True is not supported'),
    ('mistral', dict(layer_types=MIXED), 'contradicts the layers of this family'),
    ('llama', dict(layer_types=MIXED, sliding_window=5), 'contradicts the layers of this family'),
    ('llama', dict(layer_types=[FULL] * 6), 'layer_types has 6 entries for 7 layers'),
    ('qwen2', dict(layer_types=MIXED), "'sliding_attention' needs use_sliding_window=true"),
    ('qwen2', dict(layer_types=MIXED, use_sliding_window=True, sliding_window=None),
     'sliding_window=None must be'),
    ('qwen2', dict(use_sliding_window='yes'), "use_sliding_window='yes' must be true or false"),
    ('qwen3', dict(max_window_layers=None), 'max_window_layers=None must be a whole number'),
    ('gemma3_text', dict(sliding_window_pattern=None), 'sliding_window_pattern=None must be'),
    ('gemma3_text', dict(sliding_window_pattern=0), 'sliding_window_pattern=0 must be'),
    ('gemma3_text', dict(sliding_window_pattern=2, layer_types=MIXED),
     'contradicts sliding_window_pattern'),
    ('gemma3_text', dict(num_hidden_layers=2**31 - 1), '10000 is the most'),
    ('mistral', dict(num_hidden_layers=2**31 - 1), '10000 is the most'),
], ids=str)
def test_what_is_refused(family, entries, words, tmp_path):
  write_config(tmp_path, minimal_config(family, num_hidden_layers=7) | entries)
  assert words in refusal(tmp_path)
