"""A layout is right if it is that of the function that transformers computes.

A third of the families is tested; all of them with LAYOUTS=all.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import layouts

torch = pytest.importorskip('torch')
pytest.importorskip('transformers')
import tiny_families  # noqa: E402

# family → whether units and values are read: yes, or the reason why not.
FOUND = json.loads(Path(__file__).with_name('layouts_of_families.json').read_text())
MADE = [family for family, found in FOUND.items() if 'made' not in found]
JUDGED = MADE if os.environ.get('LAYOUTS') == 'all' else MADE[::3]


@pytest.mark.parametrize('family', JUDGED)
def test_a_layout_is_that_of_the_function(family, tmp_path):
  """To permute features changes no output, and norms hide what their gains say."""
  kind = tiny_families.make(family, str(tmp_path))
  tensors = {name: x for file in sorted(tmp_path.glob('*.safetensors'))
             for name, x in load_file(file).items()}
  run = runner(kind, tmp_path)
  expected = [FOUND[family][group] == 'yes' for group in ('units', 'values')]
  try:
    layout = layouts.find({name: x.shape for name, x in tensors.items()},
                          json.loads((tmp_path / 'config.json').read_text()))
  except InputError:
    assert expected == [False, False]
    return
  groups = [[x for layer in layout.layers for x in getattr(layer, group)]
            for group in ('units', 'heads')]
  assert [bool(group) for group in groups] == expected
  plain, changed = hidden_by_norms(tensors, layout)
  before = run(plain)
  for group, part in zip(groups, ('up', 'value'), strict=True):
    if group:
      changed = permuted(changed, group)
      assert difference(run(permuted(plain, group, [part])), before) > 1e-3
  assert difference(run(changed), before) < 1e-5


def test_goals_are_met():
  assert sorted(FOUND) == sorted(tiny_families.NAMES)
  units = [family for family in MADE if FOUND[family]['units'] == 'yes']
  values = [family for family in units if FOUND[family]['values'] == 'yes']
  assert len(units) >= 165 and len(values) >= 140


MLP = (('up_proj', (128, 64)), ('down_proj', (64, 128)))


def of_names(*stacks, layers=2, **others):
  """Shapes of tensors: MLPs of some stacks, in the order of their names, and others."""
  shapes = {f'{stack}.{i}.mlp.{name}.weight': shape
            for stack in stacks for i in range(layers) for name, shape in MLP}
  return dict(sorted((shapes | others).items()))


def test_layers_stand_in_the_order_of_their_numbers():
  layout = layouts.find(of_names('model.layers', layers=12), {'hidden_size': 64})
  tensors = [layer.units[0].roles['up'].tensors[0] for layer in layout.layers]
  assert tensors == [f'model.layers.{i}.mlp.up_proj.weight' for i in range(12)]


OF_TEXT = {'hidden_size': 64, 'vocab_size': 300}


def unknown(stack):
  """Shapes of a stack whose names say nothing here."""
  return {f'{stack}.{i}.{name}.weight': (192, 64) for i in range(2) for name in ('mix', 'again')}


@pytest.mark.parametrize('aside', [
    'vision_tower.encoder.layers', 'model.visual.blocks', 'audio_encoder.layers', 'v.blk',
    'Qformer.bert.encoder.layer', 'text_encoder.layers', 'teacher.llm.layers', 'llm.mtp_layers',
    'llm.vision_tower.layers', 'medusa_head', 'a_tower.language_model_head.layers'])
def test_what_stands_beside_a_language_model_is_not_read(aside):
  """Also if it has a vocabulary of the same shape, as a frozen teacher, or the only one."""
  layers = 3 if 'visi' in aside or 'visual' in aside else 2
  for tables in [('llm',), ('x', 'llm'), ('x',), ()]:
    own = {f'{x}.wte.weight'.replace('x', aside, 1): (300, 64) for x in tables}
    shapes = of_names('llm.layers', **of_names(aside, layers=layers), **own)
    for names in sorted(shapes), sorted(shapes, reverse=True):
      layout = layouts.find({name: shapes[name] for name in names}, {'text_config': OF_TEXT})
      assert (layout.stack, layout.left_out) == ('llm.layers', (aside,))


def test_a_width_that_no_setting_gives_is_that_of_a_table():
  shapes = of_names('llm.layers', 'vision.layers', **{
      'vision.embeddings.weight': (9, 128), 'llm.wte.weight': (320, 64)})
  assert layouts.find(shapes, {'text_config': {'model_type': 'llama'}}).width == 64


@pytest.mark.parametrize('shapes, width', [
    # Layers that can be read stand beside some whose names say nothing here.
    *[(of_names(stack, **{'llm.wte.weight': (300, 64)}, **unknown('llm.blocks')), 64)
      for stack in ('visual.blocks', 'llm.visual.encoder.blocks', 'text_encoder.layers',
                    'encoder.layers', 'frozen.layers')],
    # Only one of two has a table, or is as wide as the settings say.
    (of_names('a.layers', 'b.layers', **{'a.embed_tokens.weight': (300, 64)}), 64),
    (of_names('a.layers', 'b.layers', **{'b.embed_tokens.weight': (300, 64)}), 0),
    (of_names('text_encoder.layers', 'llm.layers'), 48),
    # Layers of vision and language, by their name.
    (of_names('vision_language_model.layers', 'other.layers'), 64),
    # More weights than in what is read: flat, in a tower by its name, or in no stack.
    *[(of_names('bert.layers', **{name: (10**5,)}), 64)
      for name in ('llm.layers.0.flat', 'audio_decoder.layers.0.up', 'token_mixer.block0.x.up')],
    # Such also in lists of one kind each, none of which is larger.
    (of_names('bert.layers', **{f'llm.{x}.0.up': (2**14,) for x in 'abc'}), 64),
    # A file that claims more rows than fit into memory.
    ({f'llm.layers.0.{x}_proj.weight': (2**50, 64)[::y] for x, y in (('up', 1), ('down', -1))}, 64),
    # Stages, which are lists of layers.
    (of_names('blocks.0', 'blocks.1'), 64),
    # Empty, as after training in parts; or of norms that are named like those of a draft.
    (of_names('bert.layers', **dict.fromkeys(unknown('llm.layers'), (0,))), 64),
    (of_names('bert.layers', **{f'llm.layers.{i}.prenorm.weight': (64,) for i in range(2)},
              **unknown('llm.layers')), 64),
    # An encoder, and a decoder that does not read it.
    (of_names('encoder.layers', 'decoder.layers'), 64),
    # A list of models, whose numbers are not those of layers.
    (of_names('models.0.model.layers', 'models.1.model.layers'), 64),
    # A text encoder, and nothing else that is read.
    (of_names('text_model.encoder.layer', 'audio_model.layers'), 64),
])
def test_layers_that_could_be_others_than_a_language_models_are_refused(shapes, width):
  with pytest.raises(InputError, match='ambiguous|recognized as a language model'):
    layouts.find(shapes, {'hidden_size': width, 'vocab_size': 300})


def test_of_an_encoder_and_its_decoder_the_decoder_is_read():
  encoder = of_names('model.encoder.layers', layers=9)  # It has more weights.
  shapes = of_names('model.decoder.layers', **encoder, **{
      f'model.decoder.layers.{i}.encoder_attn.k_proj.weight': (64, 64) for i in range(2)})
  assert layouts.find(shapes, OF_TEXT).stack == 'model.decoder.layers'


@pytest.mark.parametrize('within', ['up_proj.base_layer', 'experts.expert_0.up_proj'])
def test_adapters_and_experts_have_names_of_their_own_within_a_layer(within):
  shapes = {name.replace('up_proj', within).replace('down_proj', within.replace('up', 'down')): x
            for name, x in of_names('model.layers', **{'extra.0.a': (9, 9), 'extra.0.b': (9, 9)}
                                    ).items()}
  shapes |= {name.replace('expert_0', 'expert_1'): x for name, x in shapes.items()}
  shapes['model.layers.0.prenorm.weight'] = (64,)  # No norm of a draft (enorm).
  layout = layouts.find(shapes, {'hidden_size': 64})
  assert [len(layer.units) for layer in layout.layers] == [1, 1]
  assert layout.left_out == ('extra',)


def test_norms_of_what_a_sublayer_writes_stand_behind_it():
  norms = 'post_attention_layernorm', 'post_feedforward_layernorm'
  names = {f'self_attn.{name}_proj': (64, 64) for name in 'qkvo'} | dict.fromkeys(norms, (64,))
  layout = layouts.find(of_names('model.layers', **{
      f'model.layers.{i}.{name}.weight': shape for i in range(2) for name, shape in names.items()}),
      {'hidden_size': 64, 'num_attention_heads': 4})
  layer = layout.layers[0]
  for (sublayer,), norm in zip((layer.heads, layer.units), norms, strict=True):
    assert (sublayer.before, sublayer.behind) == (None, f'model.layers.0.{norm}.weight')


def difference(after, before):
  return np.abs(after - before).max() / before.std()


def hidden_by_norms(tensors, layout):
  """Tensors, and the same with changes of what is read and written that norms hide.

  Norms before a sublayer that take the mean away hide the same change in all channels, divided by
  their gains; others are made to hide channel 0. Norms behind one are made to hide channels 0 and
  1, whose exchange changes neither mean nor size.
  """
  before, rng = {name: x.copy() for name, x in tensors.items()}, np.random.default_rng(0)
  sublayers = [x for layer in layout.layers for x in layer.units + layer.heads]
  hidden = {x.before: 0 if layout.centred else 1 for x in sublayers if x.before}
  hidden |= {x.behind: 2 for x in sublayers if x.behind}
  for norm, num_channels in hidden.items():
    before[norm][:num_channels] = -1 if layout.zero_centred else 0
    if (bias := norm.replace('weight', 'bias')) in before:
      before[bias][:] = 0
  after = {name: x.copy() for name, x in before.items()}
  for sublayer in sublayers:
    if sublayer.before:
      gain = before[sublayer.before] + (1 if layout.zero_centred else 0)
      change_read(after, sublayer, 1 / gain if layout.centred else np.eye(len(gain))[0], rng)
    for where in map(sublayer.roles.get, ('down', 'output') if sublayer.behind else ()):
      for name in where.tensors if where else ():
        written = where.get(after[name])
        where.put(after[name], written[..., [1, 0, *range(2, layout.width)]])
  return before, after


def change_read(tensors, sublayer, direction, rng):
  """Adds multiples of a direction of the stream to what a sublayer reads."""
  for role in {'gate', 'up', 'query', 'key', 'value'} & sublayer.roles.keys():
    where = sublayer.roles[role]
    for name in where.through[:1] if where.through else where.tensors:
      read = tensors[name] if where.through else where.get(tensors[name])
      if read.shape[-1] == len(direction):
        read = read + rng.normal(0, .3, (*read.shape[:-1], 1)) * direction
        if where.through:
          tensors[name][...] = read
        else:
          where.put(tensors[name], read)


def permuted(tensors, sublayers, only=('gate', 'up', 'down', 'value', 'output', 'gain')):
  """The tensors with units (of each expert) and channels (of each value head) in other orders."""
  changed = {name: x.copy() for name, x in tensors.items()}
  for index, sublayer in enumerate(sublayers):
    for role, where in sublayer.roles.items():
      for expert, name in enumerate(where.tensors if role in only else ()):
        where.put(changed[name], shuffled(where.get(changed[name]), index, expert))
      for expert, name in enumerate(where.biases if role in only else ()):
        x = changed[name][..., where.rows, None]
        changed[name][..., where.rows] = shuffled(x, index, expert)[..., 0]
  return changed


def shuffled(x, *seed):
  """[U, D] in another order; [E, U, D], [G, K, D] and [G, H, K, D] by one for each first index."""
  if x.ndim == 2:
    return x[np.random.default_rng(seed).permutation(len(x))]
  orders = [np.random.default_rng((*seed, i)).permutation(x.shape[-2]) for i in range(len(x))]
  return np.stack([each[..., order, :] for each, order in zip(x, orders, strict=True)])


def runner(kind, folder):
  """A function from tensors to logits. A model is made anew only of other names than it has."""
  dtypes, models = [torch.float64, torch.float32], []
  ids = torch.randint(5, 90, (2, 9), generator=torch.Generator().manual_seed(1))

  def model_of(tensors):
    if models and tensors.keys() <= models[0].state_dict().keys():
      given = {name: torch.tensor(x) for name, x in tensors.items()}
      models[0].load_state_dict(given, strict=False)
      return models[0]
    for file in folder.glob('*.safetensors*'):
      file.unlink()
    save_file({name: np.array(x, order='C') for name, x in tensors.items()},
              folder / 'model.safetensors', {'format': 'pt'})
    models[:] = [kind.from_pretrained(folder, dtype=dtypes[0]).eval()]
    return models[0]

  def run(tensors):
    torch.set_default_dtype(dtypes[0])
    try:
      with torch.no_grad():
        return model_of(tensors)(input_ids=ids).logits.numpy()
    except RuntimeError:  # Some make tensors of float32 on the way.
      if len(dtypes) == 1:
        raise
    finally:
      torch.set_default_dtype(torch.float32)
    del dtypes[0], models[:]
    return run(tensors)

  return run
