"""A mistake that only the program can see names its flag, before anything is written."""

import numpy as np
import pytest

from bornbiased_jax.data import corpus, load_tokenizer
from bornbiased_jax.errors import InputError
import programs

STUDY = dict(study='{training_study}', num_sequences='200')
READERS = 'persistence', 'seedprint_tables', 'baselines'
SINKS = dict(length='16', lengths='16,12', position='4', afterwards='mask')
NONE = SINKS | dict(interventions='none', afterwards='none')

MISTAKES = [
    ('training_study', dict(continued='42,7'), 'continued'),
    ('training_study', dict(accumulation='3'), 'accumulation'),
    ('training_study', dict(keep_steps='7'), 'keep_steps'),
    ('training_study', dict(python_keep_steps='2,5'), 'python_keep_steps'),
    *((name, STUDY | dict(seeds='42,43') | wrong, flag) for name in READERS for wrong, flag in (
          (dict(study='nowhere'), 'study'), (dict(seeds='42,43,44'), 'study'),
          (dict(num_sequences='128'), 'num_sequences'), (dict(length='9999'), 'length'))),
    ('persistence', STUDY | dict(seeds='42'), 'seeds'),
    ('seedprint_tables', STUDY | dict(seeds='42'), 'seeds'),
    ('robustness', dict(seeds='1,2'), 'seeds'),
    ('robustness', dict(study='nowhere'), 'study'),
    ('robustness', STUDY, 'study'),  # Which lacks the third seed.
    ('robustness', dict(num_sequences='128'), 'num_sequences'),
    ('robustness', dict(length='9999'), 'length'),
    ('calibrate', dict(seeds='1,2'), 'seeds'),
    ('calibrate', dict(probes='gaussian', runs='{training_study}/english'), 'runs'),
    ('calibrate', dict(num_sequences='128'), 'num_sequences'),
    ('pretrain', dict(seeds='42,44', init_from='{training_study}/english'), 'seeds'),
    ('pretrain', dict(seeds='42,44', resume='{training_study}/english'), 'seeds'),
    ('pretrain', dict(seeds='1,2', init_from='{training_study}/english/seed_42'), 'seeds'),
    *(('pretrain', dict(batch_size='2', length='16') | wrong, flag) for wrong, flag in (
        (dict(config='tiny_gpt2', init_from='a'), 'config'),
        (dict(data='nowhere.txt'), 'data'), (dict(data='tfds:no_such_set'), 'data'),
        (dict(data='short.txt'), 'data'), (dict(data='empty.txt'), 'data'),
        (dict(valid='nowhere.txt'), 'valid'), (dict(tokenizer='nowhere.model'), 'tokenizer'),
        (dict(init_from='nowhere'), 'init_from'), (dict(resume='nowhere'), 'resume'),
        (dict(init_from='a', resume='b'), 'init_from'), (dict(keep_steps='3,99'), 'keep_steps'),
        (dict(intervention='mask', intervention_position='16'), 'intervention_position'),
        (dict(intervention_position='3'), 'intervention_position'),
        (dict(intervention='gain', intervention_strength='3'), 'intervention_strength'),
        (dict(adapter='lora'), 'adapter'), (dict(rank='4'), 'rank'),
        (dict(adapter='prefix_plus', init_from='a', alpha='2'), 'alpha'),
        (dict(min_lr='1'), 'min_lr'), (dict(accumulation='3'), 'accumulation'),
        (dict(warmup_steps='6'), 'warmup_steps'), (dict(balance='1'), 'balance'),
        (dict(max_length='8'), 'length'), (dict(peak_lr='fast'), 'peak_lr'),
        (dict(clip='-1'), 'clip'), (dict(keep_steps='1,x'), 'keep_steps'),
        (dict(config='big'), 'config'), (dict(remat='some'), 'remat'),
        (dict(num_steps='0'), 'num_steps'), (dict(adapter='ia3'), 'adapter'),
        (dict(rank='0'), 'rank'))),
    ('trained_experts', dict(config='tiny_gpt2'), 'config'),
    ('forgetting', dict(steps='10'), 'steps'),
    ('forgetting', dict(forgetting='0,20'), 'steps'),
    ('forgetting', dict(length='5000'), 'length'),
    ('forgetting', dict(config='tiny_llama2,init_scheme=mup'), 'config'),
    ('forgetting', dict(batch_size='2', variants='batch / 4'), 'batch_size'),
    ('forgetting', dict(train_length='5000'), 'train_length'),
    ('attention_sink', dict(position='32'), 'position'),
    ('attention_sink', dict(lengths='8'), 'lengths'),
    *(('text_sinks', SINKS | wrong, flag) for wrong, flag in (
        (dict(lengths='16,32'), 'lengths'),
        (dict(lengths='8,16'), 'lengths'),  # Uniform attention is a sink.
        (dict(position='12'), 'position'),
        (dict(position='0'), 'position'),
        (dict(afterwards='none,mask'), 'afterwards'),
        (dict(min_lr='1'), 'min_lr'),
        (dict(config='tiny_llama2,sublayers=mlp_only'), 'config'),
        (dict(config='tiny_llama2,vocab_size=100'), 'config'),
        (dict(config='tiny_llama2,intervention=mask'), 'config'),
        (dict(data='large.uint16', texts='long.txt'), 'data'),
        (dict(data='ids/tokens.bin'), 'data'),
        (dict(texts='ids/tokens.bin'), 'texts'),
        (dict(data='nowhere'), 'data'),
        (dict(data='none'), 'data'),
        (dict(accumulation='3'), 'accumulation'),
        (dict(interventions='mask'), 'interventions'),
        (dict(texts='short.txt'), 'texts'),
        (dict(start_id='257'), 'start_id'),
        (dict(texts='long.txt,large.uint16'), 'texts'),
        (dict(data='long.txt', length='64'), 'data'))),
    *(('text_sinks', NONE | wrong, flag) for wrong, flag in (
        (dict(position='5'), 'position'),
        (dict(strength='2'), 'strength'),
        (dict(position='99', lengths='8,16'), 'lengths'))),
    ('text_sinks tiny_llama2:1', SINKS, 'tokenizer'),
    ('text_sinks tiny_llama2:1', SINKS | dict(seeds='1'), 'seeds'),
    ('text_sinks tiny_llama2:1', SINKS | dict(data='long.txt', texts='long.txt'), 'data'),
    ('text_sinks tiny_llama2,vocab_size=257:1 tiny_llama2,vocab_size=257:1', SINKS, None),
    ('text_sinks tiny_llama2:1', SINKS | dict(data='none'), 'data'),
    ('seedprint a b c', {}, None), ('seedprint a b', dict(base='c'), None),
    ('seedprint tiny_gpt2:1', {}, None),
    ('seedprint tiny_gpt2:1 tiny_gpt2:x', {}, 'suspect'),
    ('seedprint tiny_gpt2:1 tiny_gpt2:2', dict(length='1025'), 'length'),
    ('seedprint tiny_gpt2:1 tiny_gpt2:2', dict(num_ids='3000'), 'num_ids'),
    ('lineage tiny_gpt2:1', {}, None), ('lineage tiny_gpt2:1 nowhere', {}, None),
    ('text_sinks tiny_nothing:1', {}, None),
    ('through_training', {}, None), ('through_training .', {}, None),
]


@pytest.mark.parametrize('command, flags, named', MISTAKES, ids=lambda value: (
    value if isinstance(value, str) else '' if value is None else ' '.join(value.values())))
def test_a_mistake_is_named_before_anything_is_written(command, flags, named, small, tmp_path,
                                                       monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'short.txt').write_text('short')
  (tmp_path / 'empty.txt').touch()
  (tmp_path / 'long.txt').write_text('long ' * 99)
  (tmp_path / 'large.uint16').write_bytes(np.full(100, 5000, np.uint16).tobytes())
  corpus.write(['long.txt'], load_tokenizer('bytes'), tmp_path / 'ids')
  name, *words = command.split()
  with pytest.raises(InputError) as error:
    programs.run(name, tmp_path / 'out', *words, **programs.filled(flags, small))
  assert not (tmp_path / 'out').exists()
  flags_named = error.value.field or str(error.value).partition(':')[0].replace('--', '')
  assert named is None or named in flags_named.split(', '), error.value
