"""Attention sinks: when they arise, what makes them, and what language modelling loses without them (Fig 12, Table 7).

    python -m experiments.attention_sink --data=my_train.jsonl.xz --texts=my_test.txt,other.jsonl.xz
    python -m experiments.attention_sink my_llama/ --tokenizer=my_llama/tokenizer.model --texts=my_text.txt \\
        --output_dir=results/sinks_of_my_llama

Averaging gives the first position a larger variance than later ones, and a head
that wants to attend to nothing finds it there. Networks of the same seeds are
trained on the same data in the same order with each of --interventions on o_i,
the weighted mean of values at position i:

    none                none
    amplify, attenuate  o_i sqrt(i), o_i sqrt(i / T): the same variance everywhere
    rmsnorm             each head's o_i normalized to mean square 1, with a learned gain
    gain                o_i times a constant, the size of 'amplify' without its shape
    mask                --position attends to itself alone, and keeps its variance
    variance, norm      --strength times o_i at --position, about its mean and as a whole

The networks trained without are also measured under each of --afterwards, which
they have never met. Networks named on the command line are measured as they are
and under these, and nothing is trained.

A head is a sink in a sequence if the mean weight on the position, over the
queries from it on, exceeds .3. Sequences are drawn from the first of --texts
(default: the last twentieth of --data); losses are of all of them, windows side
by side, in nats a token of --tokenizer: a byte, unless another is given.

OUTPUT_DIR/INTERVENTION/seed_SEED has the checkpoints, results.json a row a
network and step (sink rates by length, layer and head, massive activations,
effective rank, positional std, losses), figure.png the comparison. The laptop's
16 networks take about an hour on two CPU cores; the same command goes on where
it was.
"""

import dataclasses

import numpy as np
from tqdm import tqdm

from bornbiased_jax import configs
from bornbiased_jax.analysis import attention_sink
from bornbiased_jax.data import corpus, tokenizers
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import networks
from bornbiased_jax.storage import checkpoint
from experiments import command_line, pretrain, sink_report
from experiments.command_line import automatic, choice, flagged, listed, optional, positive, whole
from experiments.results import Results, ci95

# 'rmsnorm' has parameters that only training finds.
_AFTERWARDS = tuple(name for name in configs.INTERVENTIONS if name not in ('none', 'rmsnorm'))
# Models pad their vocabularies by a few percent.
PADDING = 1.1
SHARED = ('config', 'tokenizer', 'data', 'data_seed', 'seeds', 'num_steps', 'batch_size', 'length', 'accumulation',
          'dtype', 'remat', 'peak_lr', 'min_lr', 'warmup_steps', 'keep_steps', 'save_every')
SINK_KINDS = pretrain.TRAINING_KINDS | {
    'data': (optional(str), pretrain.TRAINING_KINDS['data'][1]),
    'texts': (automatic(listed(str)),
              "text files to evaluate on, the first also for sink rates; 'auto': the last twentieth of --data"),
    'interventions': (listed(choice(*configs.INTERVENTIONS)),
                      f'what networks are trained with, of {", ".join(configs.INTERVENTIONS)}'),
    'afterwards': (optional(listed(choice(*_AFTERWARDS))),
                   f'what is done to networks trained without, of {", ".join(_AFTERWARDS)}'),
    'position': (lambda text: whole(text, 0), "where 'mask', 'variance' and 'norm' make another sink, from 0"),
    'strength': (positive, "factor of 'variance' and 'norm'"),
    'lengths': (lambda text: sorted(command_line.KINDS['lengths'][0](text)), 'sequence lengths of the sink rates'),
    'num_sequences': (command_line.KINDS['num_sequences'][0], 'sequences over which sink rates are averaged'),
    'loss_sequences': (whole, 'windows of --length tokens whose loss is measured in each text, at most'),
}

_LAPTOP = dict(data='tinyshakespeare', texts='auto', config='tiny_llama2', tokenizer='bytes', seeds='42,43',
               interventions=','.join(configs.INTERVENTIONS), afterwards='amplify,attenuate,mask,variance,norm',
               position='16', strength='4', lengths='32,64,128', num_sequences='100', loss_sequences='256',
               probe_seed='0', data_seed='42', num_steps='2000', batch_size='16', length='128', accumulation='1',
               peak_lr='3e-3', min_lr='3e-4', warmup_steps='100', dtype='float32', remat='none',
               keep_steps='100,300,600,1000,1500', save_every='250')
SCALES = {
    'smoke': _LAPTOP | dict(interventions='none,mask', afterwards='amplify', num_steps='6', batch_size='4',
                            length='32', lengths='8,32', position='4', warmup_steps='2', keep_steps='3',
                            num_sequences='8', loss_sequences='8'),
    'laptop': _LAPTOP,
    'paper': _LAPTOP | dict(data='none', config='nano_llama2', num_steps='200000', batch_size='128', length='2048',
                            lengths='32,64,128,256,512', peak_lr='6e-4', min_lr='6e-5', warmup_steps='2000',
                            dtype='bfloat16', save_every='1000',
                            keep_steps='300,1000,3000,10000,30000,100000'),
}


def main(settings, output_dir):
  check(settings)
  texts = load_texts(settings)
  cases = named(settings, texts) if settings.networks else None
  results = Results(output_dir, 'attention_sink', settings)
  done = {(row['intervention'], row['afterwards'], row['seed'], row['step']) for row in results.rows}
  for *case, load in tqdm(cases or trained(settings, output_dir), desc='measuring', unit='network', delay=1):
    if tuple(case) not in done:
      intervention, afterwards, seed, step = case
      config, params = load()
      last = settings.networks or step == settings.num_steps
      row = measure(config, params, texts, settings, settings.lengths if last else settings.lengths[-1:])
      if step and not last:
        del row['positional_std_LT']  # A curve a layer is much to keep of every step.
      results.add({'intervention': intervention, 'afterwards': afterwards, 'seed': seed, 'step': step} | row
                  | {'loss': losses(config, params, texts, settings) if last else None})
  summary = sink_report.summarize([row for row in results.rows if row['loss']])
  results.finish(summary, sink_report.display, sink_report.draw(results.rows, settings))


def check(settings):
  """Raises InputError for what would otherwise fail after an hour."""
  longest = settings.lengths[-1]
  if longest > settings.length:
    raise InputError(f'--lengths: {longest} exceeds --length={settings.length}, the sequences that networks read')
  if settings.position >= settings.lengths[0]:
    raise InputError(f'--position: {settings.position} is not one of {settings.lengths[0]} positions, from 0, of the '
                     'shortest of --lengths')
  if not settings.data and not (settings.networks and settings.texts):
    raise InputError('--data: is missing: text, a data set as tfds:NAME, or a folder of experiments.tokenize_text')
  if not settings.networks and 'none' not in settings.interventions:
    raise InputError("--interventions: 'none' must be among them, which the others are compared with")


def load_texts(settings) -> dict[str, corpus.Corpus]:
  """What to evaluate on, by its name."""
  tokenizer = flagged('tokenizer', tokenizers.load, settings.tokenizer)
  if settings.texts:
    texts = {text: flagged('texts', corpus.load, text, tokenizer) for text in settings.texts}
  else:
    held_out = corpus.hold_out(flagged('data', corpus.load, settings.data, tokenizer), pretrain.HELD_OUT)[1]
    texts = {held_out.name: held_out}
  for name, text in texts.items():
    flagged('texts' if settings.texts else 'data', check_text, name, text, tokenizer.vocab_size, settings.length)
  return texts


def check_text(name, text, vocab_size, length):
  text.check(vocab_size)
  if text.tokens.size <= length:
    raise InputError(f'{name} has {text.tokens.size} tokens, fewer than one sequence of {length} and the token after '
                     'it')


def named(settings, texts):
  """A case a network, and one an intervention on it: what it is called, and a function that loads it."""
  vocab_size = next(iter(texts.values())).vocab_size
  cases = []
  for name in settings.networks:
    config = networks.load_config(name)
    if not vocab_size <= config.vocab_size <= PADDING * vocab_size:
      raise InputError(f'--tokenizer: {settings.tokenizer} has {vocab_size} token ids, {name} {config.vocab_size}; '
                       "give the network's own")
    if config.length < settings.length:
      raise InputError(f'--length: {settings.length} exceeds the {config.length} positions of {name}')
    for afterwards in (None, *(settings.afterwards or ())):
      if not afterwards or config.intervention == 'none':
        cases.append((name, afterwards, None, None, lambda name=name, afterwards=afterwards: changed(
            settings, *networks.load(name)[:2], afterwards)))
  return cases


def trained(settings, output_dir):
  """Trains what is not trained yet. A case a checkpoint, and one an intervention on the last of those without."""
  for intervention in settings.interventions:
    train(settings, intervention, output_dir / intervention)
  cases = []
  for intervention in settings.interventions:
    for seed in settings.seeds:
      run = output_dir / intervention / f'seed_{seed}'
      for step in checkpoint.steps(run):
        if step in (0, *(settings.keep_steps or ()), settings.num_steps):
          cases.append((intervention, None, seed, step, lambda run=run, step=step: checkpoint.load_params(run, step)))
  for afterwards in settings.afterwards or ():
    for seed in settings.seeds:
      cases.append(('none', afterwards, seed, settings.num_steps, lambda seed=seed, name=afterwards: changed(
          settings, *checkpoint.load_params(output_dir / 'none' / f'seed_{seed}', settings.num_steps), name)))
  return cases


def train(settings, intervention, directory):
  """Calls `pretrain` with this study's settings."""
  at_one = intervention in configs.AT_ONE_POSITION
  where = dict(intervention_position=settings.position, intervention_strength=settings.strength) if at_one else {}
  pretrain.run_study(settings, SHARED, settings.scale, directory, intervention=intervention,
                     valid=settings.texts[0] if settings.texts else None, max_length=settings.length, **where)


def changed(settings, config, params, intervention):
  """A network under an intervention that it was not trained with; None: as it is."""
  if not intervention:
    return config, params
  return dataclasses.replace(config, intervention=intervention, intervention_position=settings.position,
                             intervention_strength=settings.strength), params


def measure(config, params, texts, settings, lengths) -> dict:
  """Sinks at the first position and at --position, by length; at the longest also by head, and what stands out."""
  tokens_NT = draw_sequences(next(iter(texts.values())).tokens, settings)
  received = [attention_sink.received(config, params, tokens_NT[:, :length]) for length in lengths]
  row = {'lengths': lengths}
  for name, position in (('first', 0), ('position', settings.position)):
    sinks = [attention_sink.rate_of(weight_NLHT, config, position) for weight_NLHT in received]
    row |= {f'{name}_rate': [sink.rate for sink in sinks],
            f'{name}_rate_ci95': [ci95(sink.rate_N) for sink in sinks],
            f'{name}_weight': [float(sink.weight_NLH.mean()) for sink in sinks],
            f'{name}_floor': [sink.floor for sink in sinks],
            f'{name}_rate_LH': sinks[-1].rate_LH, f'{name}_weight_LH': sinks[-1].weight_NLH.mean(axis=0)}
  row |= attention_sink.diagnostics(config, params, tokens_NT)
  row['effective_rank_L'] = attention_sink.effective_rank(config, params, tokens_NT)
  neurons = attention_sink.super_neurons(config, params, tokens_NT)
  top_L = neurons['activation_LF'].argmax(axis=-1)
  at_top = lambda name: np.take_along_axis(neurons[name], top_L[:, None], axis=-1)[:, 0]
  return row | {'super_neuron_L': top_L, 'super_activation_L': at_top('activation_LF'),
                'super_concentration_L': at_top('concentration_LF')}


def draw_sequences(tokens, settings) -> np.ndarray:
  """Ids [num_sequences, longest] from random places of a text."""
  longest = settings.lengths[-1]
  start_N = np.random.default_rng(settings.probe_seed).integers(0, len(tokens) - longest, settings.num_sequences)
  return np.stack([tokens[start:start + longest] for start in start_N]).astype(np.int32)


def losses(config, params, texts, settings) -> dict[str, float]:
  """Mean loss of each text, in nats a token."""
  most = settings.loss_sequences * settings.length + 1
  return {name: attention_sink.strided_loss(config, params, text.tokens[:most], settings.length)
          for name, text in texts.items()}


if __name__ == '__main__':
  command_line.run(main, 'attention_sink', SCALES, __doc__, SINK_KINDS, positional='networks')
