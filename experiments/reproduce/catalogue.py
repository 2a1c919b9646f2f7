"""The paper's figures and tables: what each claims, what it says in numbers, and what measures it.

They stand in order of worth. Minutes are of two CPU cores at the scales smoke, laptop, overnight
and rehearsal, and a guess for one GPU of 2024 at the paper's and at gpu.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Run(NamedTuple):
  """One run of one program.

  It takes `minutes` at each scale that has it. `flags` are its settings on top of the scale's,
  and those of single scales are `at` them. `reads` are folders of runs whose checkpoints its flags
  want, `after` runs whose checkpoints it reads too, if they have been begun. `texts` has the texts
  that its flags want, comma-separated, and `needs` some of them, but at the scales smoke and
  rehearsal. `words` are no flags.
  """

  program: str
  minutes: Mapping[str, float]
  flags: Mapping[str, str] = {}
  name: str = ''
  reads: Mapping[str, str] = {}
  after: tuple[str, ...] = ()
  texts: Mapping[str, str] = {}
  needs: tuple[str, ...] = ()
  at: Mapping[str, Mapping[str, str]] = {}
  words: tuple[str, ...] = ()

  def settings(self, scale: str) -> dict[str, str]:
    """
    >>> run = Run('sweep', {'laptop': 1, 'paper': 9}, {'seeds': '0-9'}, at={'paper': {'n': '99'}})
    >>> run.settings('laptop'), run.settings('paper')
    ({'seeds': '0-9'}, {'seeds': '0-9', 'n': '99'})
    """
    return {**self.flags, **self.at.get(scale, {})}

  @property
  def folder(self) -> str:
    return self.name or self.program

  @property
  def readable(self) -> list[str]:
    """The folders of the runs that it reads."""
    return [path.split('/')[0] for path in self.reads.values()]


class Item(NamedTuple):
  """What the paper shows in one place, or what this package adds (no `names` of the paper's)."""

  names: tuple[str, ...]
  title: str
  claim: str
  published: str
  runs: tuple[Run, ...]


TEXTS = {
    'english': 'English text to train on', 'english_valid': 'English text to evaluate on',
    'python': 'Python source to go on with', 'python_valid': 'Python source to evaluate on',
    'stories': 'another text to go on with, such as TinyStories',
    'instructions': 'instructions and answers to go on with',
    'wikitext': 'the test part of WikiText-2',
    'subwords': 'the tokenizer of the texts that sinks are sought in',
}
_NANO = {'dtype': 'bfloat16', 'lengths': '64', 'num_sequences': '10000'}
_OWN = {'embedding_seed': 'none'}
_PYTHIA = {'config': 'pythia_70m', 'init_schemes': 'wang', 'length': '16', 'published_seeds': '3'}
# The start token is what a sink needs. They read 50 million tokens.
_SINKS = {'config': 'tiny_llama2,num_layers=8,num_heads=8,num_kv_heads=8,width=512,head_size=64,'
                    'mlp_width=1408', 'seeds': '42-44', 'together': '3', 'start_id': '1',
          'interventions': 'none,attenuate,damp,sink_logit,rmsnorm', 'afterwards': 'none',
          'num_steps': '6100', 'warmup_steps': '300', 'batch_size': '32', 'length': '256',
          'peak_lr': '2e-3', 'min_lr': '2e-4', 'save_every': '1000', 'checkpoints': 'last',
          'keep_steps': '100,300,600,1000,1500,2000,2500,3000,3500,4000,4500,5000,5500',
          'lengths': '64,128,256', 'num_sequences': '64', 'loss_sequences': '512'}
_OF_THE_STUDY = ('english', 'english_valid', 'python', 'python_valid')
_STUDY_TEXTS = dict(texts={name: name for name in _OF_THE_STUDY}, needs=_OF_THE_STUDY)
_FOUR, _OF_PAPER = {'seeds': '42-45'}, {'seeds': '42,123,1000,2000'}
STUDY = Run('training_study', dict(smoke=0.3, laptop=5, overnight=20, paper=7000),
            at={'laptop': _FOUR}, **_STUDY_TEXTS)
GPT2_STUDY = Run('training_study', dict(laptop=2, overnight=3, paper=3500), {
    'config': 'tiny_gpt2', 'seeds': '42,43'}, 'training_study_gpt2', **_STUDY_TEXTS, at={
        'laptop': {'num_steps': '300', 'keep_steps': '10,30,100', 'python_steps': '100',
                   'python_keep_steps': '30'},
        'paper': {'config': 'nano_gpt2', 'seeds': '42,123', 'continued': '42,123'}})
QWEN2_STUDY = Run('training_study', dict(overnight=5, paper=7000), {
    'config': 'tiny_qwen2'} | _FOUR, 'training_study_qwen2', **_STUDY_TEXTS,
    at={'paper': {'config': 'nano_qwen2'} | _OF_PAPER})


def _continued(study: Run, text: str, **minutes: float) -> Run:
  """The networks of a study that go on with a text, as long as others go on with Python."""
  return Run('pretrain', minutes, {
      'scale': 'continue', 'seeds': '42,43', 'batch_size': '8', 'length': '64'},
      f'{study.folder}/{text}', {'init_from': f'{study.folder}/english'}, texts={'data': text},
      needs=(text,), at={'paper': _OF_PAPER | {
          'num_steps': '10000', 'batch_size': '128', 'length': '2048', 'dtype': 'bfloat16'}})


_STORIES = _continued(STUDY, 'stories', laptop=1, overnight=1, paper=330)
_INSTRUCTIONS = _continued(STUDY, 'instructions', overnight=1, paper=330)
_QWEN2_STORIES = _continued(QWEN2_STUDY, 'stories', overnight=1, paper=330)
_QWEN2_INSTRUCTIONS = _continued(QWEN2_STUDY, 'instructions', overnight=1, paper=330)
_OF_STUDY = dict(reads={'study': STUDY.folder}, after=(_STORIES.folder, _INSTRUCTIONS.folder))
_TRAINED = {'runs': f'{STUDY.folder}/english'}
_OF_QWEN2 = dict(reads={'study': QWEN2_STUDY.folder}, at={'paper': _OF_PAPER},
                 after=(_QWEN2_STORIES.folder, _QWEN2_INSTRUCTIONS.folder))

ITEMS = (
    Item(('sinks',), 'Attention sinks of models that read English',
         'Figure 12 and Table 7 on text: levelling the variance of positions prevents sinks. The '
         'follow-up paper: RMSNorm in each head speeds up training.', '–',
         (Run('text_sinks', dict(gpu=40, rehearsal=3), _SINKS, 'text_sinks_english',
              texts={'data': 'english', 'texts': 'english_valid,wikitext',
                     'tokenizer': 'subwords'}, needs=('english', 'english_valid', 'subwords'),
              at={'rehearsal': {
                  'config': 'tiny_llama2,num_layers=2,width=64,mlp_width=128', 'num_steps': '20',
                  'warmup_steps': '5', 'keep_steps': '5,10', 'batch_size': '4', 'length': '32',
                  'lengths': '16,32', 'save_every': '10', 'loss_sequences': '8'}}),)),
    Item(('fig1', 'table1'), 'A random network has a preferred token',
         'Every random network predicts one token far more often than chance allows. Which one '
         'depends on the seed and not on the length T; the preference grows with T.',
         'nano GPT-2 predicts its preferred token 58.5 times as often as uniform sampling would '
         '(n = 10,000). The table of frequencies is missing from our copy of the paper.',
         (Run('seed_sweep', dict(gpu=8, rehearsal=0.5), {'config': 'gpt2_1b2', 'seeds': '42,43'},
              'seed_sweep_1b2', at={'rehearsal': {'config': 'tiny_gpt2', 'lengths': '4,8,16'}}),
          Run('seed_sweep', dict(smoke=0.4, laptop=2, overnight=19, paper=12),
              at={'overnight': {'lengths': '16,64,256'}}),
          Run('seed_sweep', dict(laptop=6, overnight=56, paper=2), _NANO | {
              'config': 'nano_gpt2', 'seeds': '42-46'}, 'seed_sweep_nano_n10000',
              at={'laptop': {'seeds': '42'}}),
          Run('seed_sweep', dict(overnight=4), _OWN, 'seed_sweep_own_embeddings'),
          Run('seed_sweep', dict(overnight=4), _OWN | {
              'config': 'nano_gpt2,nano_llama2', 'seeds': '42,43', 'num_sequences': '1000',
              'lengths': '64'}, 'seed_sweep_nano_T64'),
          Run('seed_sweep', dict(overnight=8), _NANO | _OWN | {
              'config': 'nano_gpt2', 'seeds': '42,43'}, 'seed_sweep_nano_own'),
          Run('seed_sweep', dict(overnight=14), {
              'config': 'nano_gpt2', 'seeds': '42-51', 'num_sequences': '1000', 'lengths': '64'},
              'seed_sweep_nano_gpt2'),
          Run('seed_sweep', dict(overnight=50, paper=1), _NANO | {
              'config': 'nano_gpt2', 'seeds': '0-99', 'num_sequences': '500'},
              'seed_sweep_nano_100'),
          Run('seed_sweep', dict(overnight=104, paper=2), _NANO | {
              'config': 'nano_llama2,nano_qwen2', 'seeds': '42,43'}, 'seed_sweep_nano_gated'),
          Run('seed_sweep', dict(overnight=146, paper=4), _NANO | {
              'config': 'nano_gpt2', 'seeds': '42,43', 'lengths': '64,256'},
              'seed_sweep_nano_T64_T256'))),
    Item(('lineage',), 'Are descendants recognized at 1.2 billion parameters?',
         'Not in the paper: networks that were trained on, rotated and narrowed are compared with '
         'their originals, which had read Shakespeare, and with those of other seeds.', '–',
         (Run('robustness', dict(gpu=14, rehearsal=2), {
             'config': 'gpt2_1b2,vocab_size=257', 'seeds': '42-44', 'methods': 'Verdict',
             'transforms': 'train on,rotate channels,remove units', 'train_steps': '300',
             'peak_lr': '1e-4', 'num_sequences': '4200', 'length': '4'}, 'robustness_1b2',
              at={'rehearsal': {'config': 'tiny_gpt2,vocab_size=257', 'peak_lr': '1e-3',
                                'num_sequences': '1000'}}),)),
    Item(('fig2',), 'Sequences grow alike with depth',
         'States of unrelated sequences grow more similar with every layer (Finding 2.1). Their '
         'mean direction predicts the preferred token (Finding 2.2).',
         'Curves for nano GPT-2 at T = 1,024. The share of networks of Finding 2.2 is missing from '
         'our copy.',
         (Run('contraction', dict(smoke=0.2, laptop=3, overnight=6, paper=10)),
          Run('contraction', dict(laptop=2, overnight=9), {
              'config': 'nano_gpt2,nano_llama2', 'seeds': '42,43', 'num_sequences': '500',
              'lengths': '64'}, 'contraction_nano_T64'),
          Run('contraction', dict(gpu=4, rehearsal=0.5), {
              'config': 'nano_gpt2,nano_llama2', 'seeds': '0-9', 'num_sequences': '1000',
              'lengths': '1024'}, 'contraction_nano_T1024', at={'rehearsal': {
                  'config': 'tiny_gpt2,tiny_llama2', 'num_sequences': '50', 'lengths': '16'}}))),
    Item(('fig3', 'fig7', 'table2'), 'The MLP contracts and attention amplifies',
         'With only attention the cosine stays near 0. With only MLPs it grows, and with both it '
         'grows more from layer 2 on.', 'Curves; no table of cosines in our copy.',
         (Run('ablation', dict(smoke=0.4, laptop=1.5, overnight=4, paper=5)),
          Run('ablation', dict(overnight=19), {
              'config': 'nano_gpt2,nano_llama2', 'seeds': '42,43', 'num_sequences': '500',
              'lengths': '64'}, 'ablation_nano'))),
    Item(('fig4', 'fig5', 'fig6'), 'The activation decides whether an MLP contracts',
         'ReLU makes independent inputs alike, as Proposition 2 says; tanh does not. GELU does so '
         'at the scale that LayerNorm gives its input.',
         'ReLU: 0.318, 0.494, 0.605, 0.681, 0.736, 0.777 after layers 1 to 6. tanh: 0.',
         (Run('activation', dict(smoke=0.3, laptop=1.5, overnight=1.5, paper=4)),)),
    Item(('table3',), 'Averaging tokens amplifies what they share',
         'A mean over tokens brings out the part that all of them share (Proposition 4).',
         'MLP0: 0.31, two of them: 0.49, MLP0 and attention: 0.98.',
         (Run('amplification', dict(smoke=0.1, laptop=1.5, overnight=2, paper=3)),)),
    Item(('fig8', 'fig9'), 'The positions of a sequence grow alike, and the first stands out',
         'Positions that average the same past grow alike (Proposition 5). The std at position i '
         'falls as 1/√i (Equation 2).',
         'Proposition 5: 0.667, 0.889, 0.938, 0.958, 0.968, 0.975 after layers 1 to 6.',
         (Run('intra_sequence', dict(smoke=0.2, laptop=1, overnight=1, paper=4)),
          Run('intra_sequence', dict(laptop=2, overnight=2), {
              'config': 'nano_gpt2', 'seeds': '0-4', 'num_sequences': '50', 'lengths': '256'},
              'intra_sequence_nano'))),
    Item(('theory',), 'The bias follows from the architecture',
         'Not in the paper: a theory without fitted numbers predicts the cosine of every layer, '
         'and how it grows with depth, length and the scale of weights.', '–',
         (Run('layer_theory', dict(smoke=0.3, laptop=2, overnight=19, paper=15),
              at={'laptop': {'seeds': '0-3', 'lengths': '16,64'}}),
          Run('scaling', dict(smoke=0.6, laptop=3, overnight=37, paper=40),
              at={'laptop': {'seeds': '0-4', 'factors': 'depth,scale', 'large': 'gpt2_1b2',
                             'large_lengths': '64'}}),
          Run('coordinates', dict(smoke=1, laptop=4, overnight=4, paper=120)),
          Run('layer_theory', dict(overnight=16), {
              'config': 'nano_gpt2', 'seeds': '0-3', 'lengths': '16,64'}, 'layer_theory_nano'),
          Run('layer_theory', dict(overnight=40), {
              'config': 'nano_gpt2', 'seeds': '0-3', 'lengths': '256', 'num_sequences': '50'},
              'layer_theory_nano_T256'))),
    Item(('table13', 'table14'), 'Pretraining, then training on another text',
         'The networks whose lineage the tables below ask for.',
         'nano LLaMA on OpenWebText, 200,000 steps of 128 × 2,048 tokens.',
         (STUDY, _STORIES, _INSTRUCTIONS)),
    Item(('fig10', 'fig11'), 'A trace of the initialization survives training',
         "A checkpoint's hidden states correlate with those of its own initialization, and not "
         'with those of a control.', 'Curves.',
         (Run('persistence', dict(smoke=0.2, laptop=2, overnight=3, paper=10), **_OF_STUDY),)),
    Item(('table4', 'table9', 'table10', 'table11', 'fig13', 'fig14'),
         'SeedPrint finds descendants',
         'Descendants have small p-values, unrelated networks large ones.',
         'p of two initializations: 0.36 to 0.68; of an initialization and its descendant: 4e-10 '
         "to 5.6e-4; and another's descendant: 0.035 to 0.43.",
         (Run('seedprint_tables', dict(smoke=0.2, laptop=2, overnight=5, paper=20),
              at={'laptop': _FOUR}, **_OF_STUDY),
          Run('seedprint_tables', dict(overnight=3), {'probe': 'gaussian'},
              'seedprint_tables_gaussian', **_OF_STUDY),
          Run('seedprint_tables', dict(paper=20), {'probe': 'tokens'}, 'seedprint_tables_tokens',
              **_OF_STUDY),
          Run('calibrate', dict(smoke=0.5, laptop=8, overnight=50, paper=30), reads=_TRAINED,
              at={'laptop': {'seeds': '0-29', 'init_schemes': 'gpt2', 'published_seeds': '6',
                             'verdict_seeds': '4'}}),
          Run('calibrate', dict(overnight=3), {'config': 'none', 'probes': 'gaussian,tokens'},
              'calibrate_trained', reads=_TRAINED),
          Run('calibrate', dict(overnight=6), {
              'probes': 'verdict', 'seeds': '0-11', 'init_schemes': 'gpt2', 'widths': '96,128',
              'config': 'tiny_gpt2,tiny_llama2,tiny_qwen2', 'verdict_seeds': '6'},
              'calibrate_verdict_random'),
          Run('calibrate', dict(overnight=8), _PYTHIA | {
              'seeds': '0-9', 'probes': 'gaussian,tokens,shared_tokens'}, 'calibrate_pythia'),
          Run('calibrate', dict(overnight=5), _PYTHIA | {'seeds': '0-29', 'probes': 'tokens'},
              'calibrate_pythia_tokens'))),
    Item(('table5', 'table6', 'table8'), 'The other fingerprints miss descendants',
         'Four fingerprints call two networks the same above 0.8, and miss that a network was '
         'trained from its initialization.',
         'Table 8: Intrinsic −0.34 to 0.15, REEF 0.33 to 0.38, PCS 0.58, ICS 0.19 to 0.20.',
         (Run('baselines', dict(smoke=0.4, laptop=1, overnight=2, paper=30),
              at={'laptop': _FOUR}, **_OF_STUDY),)),
    Item(('robustness',), 'Which fingerprint to trust when',
         'Not in the paper: networks are changed and compared with their originals.', '–',
         (Run('robustness', dict(smoke=0.2, laptop=7, overnight=17, paper=90),
              name='robustness_trained', **_OF_STUDY, at={
                  'laptop': _FOUR | {
                      'methods': 'Verdict,SeedPrint,unit order,SeedPrint published,MLP units,'
                                 'Intrinsic,REEF,PCS,ICS',
                      'transforms': 'permute units,flip channels,noise,prune,quantize,average'},
                  'paper': _OF_PAPER}),
          Run('robustness', dict(overnight=50), {
              'config': 'gpt2_1b2,num_layers=3,vocab_size=257', 'seeds': '42-44',
              'methods': 'Verdict', 'transforms': 'rotate channels,remove units,train on',
              'train_steps': '100', 'peak_lr': '1e-4', 'num_sequences': '4200', 'length': '4'},
              'robustness_wide'))),
    Item(('speed',), 'Is it fast?',
         'Not in the paper: sweeps and training steps, compared with those of transformers and '
         'torch.compile, where they are installed.', '–',
         (Run('benchmark', dict(gpu=5, rehearsal=1.5), words=('training', 'sweep')),)),
    Item(('table12', 'families'), 'The same in other families',
         'GPT-2, the family that contracts, keeps a trace of its initialization, too. Descendants '
         'are found among Qwens, whose queries, keys and values have biases.',
         'Table 12: missing from our copy of the paper.',
         (GPT2_STUDY,
          Run('persistence', dict(laptop=2, overnight=2, paper=10), name='persistence_gpt2',
              reads={'study': GPT2_STUDY.folder}),
          QWEN2_STUDY, _QWEN2_STORIES, _QWEN2_INSTRUCTIONS,
          Run('seedprint_tables', dict(overnight=2, paper=20), _FOUR, 'seedprint_tables_qwen2',
              **_OF_QWEN2),
          Run('baselines', dict(overnight=2, paper=30), _FOUR, 'baselines_qwen2', **_OF_QWEN2))),
    Item(('adversary',), 'What an adversary can do',
         'Not in the paper: unrelated networks that look related, and disguised descendants.', '–',
         (Run('adversary', dict(smoke=0.4, laptop=5, overnight=12, paper=60),
              at={'laptop': {'networks': '2'}}),)),
    Item(('born_unbiased',), 'Does identity come from the bias?',
         'Not in the paper: the same networks, born without contraction, are trained and '
         'recognized.', '–',
         (Run('born_unbiased', dict(smoke=0.5, laptop=4, overnight=90, paper=2000),
              texts={'data': 'english', 'valid': 'english_valid'},
              needs=('english', 'english_valid'),
              at={'laptop': {
                  'seeds': '42-44', 'num_steps': '300', 'keep_steps': '10,30,100'}}),)),
    Item(('fig12', 'table7'), 'Levelling the variance prevents attention sinks',
         'Attention sinks come from the loud first position. Amplification and attenuation of the '
         'variance by position prevent them.',
         'Perplexity on WikiText-2: 21.33 without, 21.95 with amplification, 21.02 with '
         'attenuation.',
         (Run('attention_sink', dict(smoke=0.4, laptop=3, overnight=20, paper=30),
              at={'laptop': {'seeds': '0-3'}}),
          Run('attention_sink', dict(overnight=65), {'factors': 'all', 'seeds': '0-3'},
              'attention_sink_factors'),
          Run('text_sinks', dict(smoke=0.5, laptop=4, overnight=70, paper=14000),
              texts={'data': 'english', 'texts': 'wikitext'}, needs=('english', 'wikitext'),
              at={'laptop': {'seeds': '42', 'interventions': 'none,amplify,attenuate',
                             'num_steps': '500', 'keep_steps': '100,300'}}))),
)


def runs(items: Iterable[Item], scale: str) -> list[Run]:
  """The runs of these items at one scale, each after those that it reads."""
  known = {run.folder: run for item in ITEMS for run in item.runs if scale in run.minutes}
  ordered: dict[str, Run] = {}
  for item in items:
    for run in item.runs:
      if scale in run.minutes:
        ordered |= {folder: known[folder] for folder in (*run.readable, run.folder)}
  return list(ordered.values())
