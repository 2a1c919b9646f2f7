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


def test_the_stack_of_the_vocabulary_is_read_also_if_that_has_rows_to_spare():
  shapes = of_names('text.layers', 'vision.layers', **{'text.embed_tokens.weight': (320, 64)})
  layout = layouts.find(shapes, {'vocab_size': 300, 'hidden_size': 64})
  assert (layout.stack, layout.left_out) == ('text.layers', ('vision.layers',))


def unknown(stack):
  """Shapes of a stack whose names say nothing here."""
  return {f'{stack}.{i}.{name}.weight': (192, 64) for i in range(2) for name in ('mix', 'again')}


TOWER = {'atower.encoder.layers.0.mlp.up_proj.weight': (192, 48),
         'atower.encoder.layers.0.mlp.down_proj.weight': (48, 192)}
TOWER |= {name.replace('.0.', '.1.'): shape for name, shape in TOWER.items()}
OF_TEXT = {'hidden_size': 64, 'vocab_size': 300}


@pytest.mark.parametrize('tower', ['atower', 'ztower'])
@pytest.mark.parametrize('rows', [300, 320])
def test_a_tower_with_a_vocabulary_of_its_own_is_not_read(tower, rows):
  """As a text encoder has that products share, before and behind the language model."""
  shapes = of_names('llm.layers', **TOWER, **{
      'llm.embed_tokens.weight': (rows, 64), 'atower.token_embedding.weight': (900, 48)})
  shapes = {name.replace('atower', tower): shape for name, shape in shapes.items()}
  for names in sorted(shapes), sorted(shapes, reverse=True):
    layout = layouts.find({name: shapes[name] for name in names}, {'text_config': OF_TEXT})
    assert (layout.stack, layout.width) == ('llm.layers', 64)
    assert layout.left_out == (f'{tower}.encoder.layers',)


@pytest.mark.parametrize('shapes, settings', [
    # No embedding is known by its name.
    (of_names('llm.model.layers', 'visual.blocks', **{'llm.tok.weight': (300, 64)}), OF_TEXT),
    # The layers beside the embedding have names that say nothing here, also if they stand above.
    (of_names('visual.blocks', **{'llm.wte.weight': (300, 64)}, **unknown('llm.blocks')), OF_TEXT),
    (of_names('llm.visual.encoder.blocks', **{'llm.wte.weight': (300, 64)},
              **unknown('llm.blocks')), OF_TEXT),
    # Two embeddings fit, also if one stands deeper, as that of a frozen teacher.
    (of_names('a.layers', 'b.layers', **{f'{x}.embed_tokens.weight': (300, 64) for x in 'ab'}),
     OF_TEXT),
    (of_names('a.layers', 'teacher.a.layers', **{
        f'{x}.embed_tokens.weight': (300, 64) for x in ('a', 'teacher.a')}), OF_TEXT),
    # A teacher has no row to spare, and the language model has; or the draft of another width.
    *[(of_names('llm.layers', 'teacher.layers', **{
        'llm.wte.weight': (320, 64), 'teacher.wte.weight': (300, width)}), OF_TEXT)
      for width in (64, 48)],
    # The only table is of a text encoder, as the language model has but a head.
    (of_names('llm.layers', **TOWER, **{
        'llm.lm_head.weight': (300, 64), 'atower.token_embedding.weight': (900, 48)}), OF_TEXT),
    # A list of models, whose numbers are not those of layers.
    (of_names('models.0.model.layers', 'models.1.model.layers', **{
        f'models.{i}.model.embed_tokens.weight': (300, 64) for i in range(2)}), OF_TEXT),
    # Only the tower is there.
    (of_names('llm.visual.blocks', **{'llm.embed_tokens.weight': (300, 64)}), OF_TEXT),
    # The embedding stands above both.
    (of_names('llm.decoder.layers', 'visual.layers', **{'wte.weight': (300, 64)}), OF_TEXT),
    # No width is given, by which one would fit better.
    (of_names('a.layers', 'b.layers', **{'a.embed_tokens.weight': (300, 64)}), {}),
])
def test_layers_that_could_be_a_tower_are_refused(shapes, settings):
  with pytest.raises(InputError, match='ambiguous|read the vocabulary.*not recognized'):
    layouts.find(shapes, settings)


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
