"""What can be done to a descendant to hide its origin without changing its function.

Each alteration is a pure function (config, params, key) → (config, params). Those in
PRESERVING leave the logits as they are, so that nobody who only uses the network can
tell. They raise InputError if the architecture lacks the symmetry that they use.
`lossy` has those that change the function.
"""

from collections.abc import Callable, Iterable
import dataclasses
import functools

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
from jax import lax
import jax.numpy as jnp

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.transformer import head_of

Altered = tuple[ModelConfig, dict]

# The leaves that have an axis of residual channels, and which axis it is.
_CHANNEL_AXIS = {
    'embedding': -1, 'position_embedding': -1, 'head': -1,
    'final_norm/scale': -1, 'final_norm/bias': -1,
    **{f'blocks/{norm}/{leaf}': -1
       for norm in ('attention_norm', 'attention_output_norm', 'mlp_norm', 'mlp_output_norm')
       for leaf in ('scale', 'bias')},
    **{f'blocks/{name}/kernel': -2 for name in ('query', 'key', 'value', 'up', 'gate')},
    **{f'blocks/{name}/{leaf}': -1 for name in ('output', 'down') for leaf in ('kernel', 'bias')},
}
# The linear layers that read a norm's output.
_READERS = {'attention_norm': ('query', 'key', 'value'), 'mlp_norm': ('up', 'gate')}


def permute_units(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Permutes the hidden units of each MLP."""
  return order_units(config, params, _permutations(key, config.num_layers, config.mlp_width))


def order_units(config: ModelConfig, params: dict, orders_LF: jax.Array) -> Altered:
  """Puts the hidden units of each MLP, or some of them, into a given order, [layers, units]."""
  config = dataclasses.replace(config, mlp_width=orders_LF.shape[1])
  return config, _reorder(params, dict(up=orders_LF, gate=orders_LF), dict(down=orders_LF))


def permute_heads(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Permutes the attention heads of each layer; grouped query heads move with their group."""
  if config.positions == 'alibi':
    raise InputError("positions='alibi' tells heads apart")
  _refuse_prefix(config)
  return order_heads(config, params, _permutations(key, config.num_layers, config.num_kv_heads))


def order_heads(config: ModelConfig, params: dict, orders_LG: jax.Array) -> Altered:
  """Puts the key/value heads of each layer, or some, into a given order, with their queries."""
  (L, count), group = orders_LG.shape, config.num_heads // config.num_kv_heads

  def columns(size):
    first_LG1 = orders_LG[..., None] * size
    return (first_LG1 + jnp.arange(size)[None, None]).reshape(L, -1)

  own, grouped = columns(config.head_size), columns(config.head_size * group)
  # A norm of each head has gains that all heads share, and these stay where they are.
  normed = dict(query_norm=grouped, key_norm=own) if config.joint_qk_norm else {}
  params = _reorder(params, dict(query=grouped, key=own, value=own) | normed, dict(output=grouped))
  return dataclasses.replace(config, num_heads=count * group, num_kv_heads=count), params


def permute_channels(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Permutes the channels of the residual stream."""
  return order_channels(config, params, jax.random.permutation(key, config.width))


def order_channels(config: ModelConfig, params: dict, order_D: jax.Array) -> Altered:
  """Puts the channels of the residual stream into a given order."""
  take = lambda x, axis: jnp.take(x, order_D, axis)
  return config, _change(params, {name: functools.partial(take, axis=axis)
                                  for name, axis in _CHANNEL_AXIS.items()})


def flip_channels(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Changes the sign of random channels of the residual stream: of most, or with LayerNorm of all.

  Only if all signs change, or none, does LayerNorm's mean stay what it is up to its sign.
  """
  sign_D = jnp.where(jax.random.uniform(key, (config.width,)) < 0.8, -1.0, 1.0)
  sign_D = -jnp.ones_like(sign_D) if config.norm == 'layernorm' else sign_D
  along = lambda axis: sign_D if axis == -1 else sign_D[:, None]
  return config, _turn(params, lambda x, axis: x * jnp.broadcast_to(along(axis), x.shape))


def rotate_channels(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Rotates the residual stream by a random orthogonal matrix.

  The gains of the norms are folded into the layers that read them, because a rotation
  does not commute with gains. With LayerNorm the vector of ones stays where it is, so
  that the mean does.
  """
  if config.norm_place != 'before':
    raise InputError(f'norm_place={config.norm_place!r}: gains behind a sublayer do not commute '
                     'with a rotation')
  config, params = _fold_gains(config, params)
  rotation_DE = _rotation(config, key)
  turn = lambda x, axis: jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ rotation_DE, -1, axis)
  with jax.default_matmul_precision('highest'):
    return config, _turn(params, turn)


def _rotation(config, key):
  D = config.width
  if config.norm == 'rmsnorm':
    return jax.random.orthogonal(key, D)
  inner_DD = jnp.eye(D).at[1:, 1:].set(jax.random.orthogonal(key, D - 1))
  # A reflection that exchanges the first axis and the vector of ones.
  axis_D = jnp.eye(D)[0] - 1 / D**0.5
  mirror_DD = jnp.eye(D) - 2 * jnp.outer(axis_D, axis_D) / (axis_D @ axis_D)
  with jax.default_matmul_precision('highest'):
    return mirror_DD @ inner_DD @ mirror_DD


def _fold_gains(config, params):
  """The same network with gains of 1. A tied head becomes a head of its own."""
  def folded(norm):
    gain = norm['scale']
    return {name: jnp.ones_like(x) if name == 'scale' else x / gain for name, x in norm.items()}

  blocks = dict(params['blocks'])
  for norm, readers in _READERS.items():
    if norm not in blocks:
      continue
    gain_LD = blocks[norm]['scale']
    blocks[norm] = folded(blocks[norm])
    for name in blocks.keys() & readers:
      blocks[name] = blocks[name] | {'kernel': blocks[name]['kernel'] * gain_LD[..., None]}
  gain_D, head_VD = params['final_norm']['scale'], head_of(config, params)
  return dataclasses.replace(config, tied_head=False), params | {
      'blocks': blocks, 'final_norm': folded(params['final_norm']), 'head': head_VD * gain_D[None]}


def mix_values(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Multiplies each head's values by a random invertible matrix, and its output by the inverse."""
  if config.intervention in ('rmsnorm', 'variance'):
    raise InputError(f'intervention={config.intervention!r} tells the channels of a head apart')
  _refuse_prefix(config)
  L, G, K = config.num_layers, config.num_kv_heads, config.head_size
  rotation_key, stretch_key = jax.random.split(key)
  left, right = jax.random.orthogonal(rotation_key, K, (2, L, G))
  stretch = _factors(stretch_key, L, G, K)[..., None, :]
  return multiply_values(config, params, (left * stretch) @ right)


def multiply_values(config: ModelConfig, params: dict, mix_LGKJ: jax.Array) -> Altered:
  """Multiplies each head's values by a matrix, and its output by the inverse."""
  L, G, K = config.num_layers, config.num_kv_heads, config.head_size

  def values(x):
    heads_LDGK = x.reshape(L, -1, G, K)
    return jnp.einsum('ldgk,lgkj->ldgj', heads_LDGK, mix_LGKJ).reshape(x.shape)

  def output(x):
    heads_LGNKD = x.reshape(L, G, -1, K, config.width)
    return jnp.einsum('lgjk,lgnkd->lgnjd', jnp.linalg.inv(mix_LGKJ), heads_LGNKD).reshape(x.shape)

  with jax.default_matmul_precision('highest'):
    return config, _change(params, {'blocks/value/kernel': values, 'blocks/value/bias': values,
                                    'blocks/output/kernel': output})


def turn_queries(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Turns and scales the pairs of channels that RoPE rotates.

  A pair counts as a complex number. Queries are multiplied by z, keys by 1 / conj(z).
  """
  if config.qk_norm or config.head_size % 2 or config.rotary_factor < 1:
    raise InputError('queries and keys that are normalized, of odd size, or turned by RoPE in part '
                     'do not commute with turning pairs')
  _refuse_prefix(config)
  L, G, half = config.num_layers, config.num_kv_heads, config.head_size // 2
  angle, size = jax.random.uniform(key, (2, L, 1, G, half), minval=-1.0)
  z_query, z_key = (jnp.exp(lax.complex(sign * 0.7 * size, jnp.pi * angle)) for sign in (1, -1))

  def turn(x, z, heads):
    a, b = jnp.split(x.reshape(L, -1, heads, 2 * half), 2, axis=-1)
    turned = lax.complex(a, b) * jnp.repeat(z, heads // G, axis=2)
    return jnp.concatenate((turned.real, turned.imag), axis=-1).reshape(x.shape)

  changes = {'query': lambda x: turn(x, z_query, config.num_heads),
             'key': lambda x: turn(x, z_key, G)}
  return config, _change(params, {f'blocks/{name}/{leaf}': change
                                  for name, change in changes.items()
                                  for leaf in ('kernel', 'bias')})


def scale_channels(config: ModelConfig, params: dict, key: jax.Array) -> Altered:
  """Scales each channel of a norm's output, and what reads it by the inverse.

  In a gated MLP the units that the gate multiplies are scaled in the same way.
  """
  changes: dict[str, Callable] = {}
  for i, (norm, readers) in enumerate(_READERS.items()):
    if norm not in params['blocks']:
      continue
    factor_LD = _factors(jax.random.fold_in(key, i), config.num_layers, config.width)
    changes |= {f'blocks/{norm}/{leaf}': lambda x, factor_LD=factor_LD: x * factor_LD
                for leaf in ('scale', 'bias')}
    changes |= {f'blocks/{name}/kernel': lambda x, factor_LD=factor_LD: x / factor_LD[..., None]
                for name in readers}
  params = _change(params, changes)
  if not config.gated_mlp:
    return config, params
  unit_LF = _factors(jax.random.fold_in(key, len(_READERS)), config.num_layers, config.mlp_width)
  return config, _change(params, {'blocks/up/kernel': lambda x: x * unit_LF[:, None],
                                  'blocks/up/bias': lambda x: x * unit_LF,
                                  'blocks/down/kernel': lambda x: x / unit_LF[..., None]})


def upcycle(config: ModelConfig, params: dict, key: jax.Array, num_experts: int) -> Altered:
  """Makes a mixture of copies of each MLP, with a router that is drawn, two experts per token."""
  refuse_experts(params, ['blocks/up/kernel'])
  if num_experts < 2 or config.sublayers == 'attention_only':
    raise InputError(f'num_experts={num_experts}: upcycling needs an MLP and two experts at least')
  config = dataclasses.replace(config, num_experts=num_experts,
                               experts_per_token=min(2, num_experts), renormalized_experts=True)
  drawn = init_params(config, jax.random.bits(key, dtype=jnp.uint32))['blocks']
  copied = jax.tree.map(lambda x, leaf: jnp.broadcast_to(x[:, None], leaf.shape),
                        {name: params['blocks'][name] for name in drawn['experts']},
                        drawn['experts'])
  kept = {name: x for name, x in params['blocks'].items() if name not in copied}
  return config, params | {'blocks': kept | {'experts': copied, 'router': drawn['router']}}


PRESERVING: dict[str, Callable] = {
    'permute units': permute_units, 'permute heads': permute_heads,
    'permute channels': permute_channels, 'rotate channels': rotate_channels,
    'flip channels': flip_channels,
    'mix values': mix_values, 'turn queries': turn_queries, 'scale channels': scale_channels,
}


def refuse_experts(params: dict, names: Iterable[str]) -> None:
  """Raises InputError if some of the leaves are of an MLP, and the network has experts."""
  if 'experts' in params['blocks'] and 'blocks/up/kernel' in names:
    count = params['blocks']['experts']['up']['kernel'].shape[1]
    raise InputError(f'num_experts={count}: this change knows no experts')


def _refuse_prefix(config):
  if config.prefix_plus:
    raise InputError('prefix_plus=True tells heads, and the channels of a head, apart')


def _factors(key, *shape):
  return jnp.exp(jax.random.uniform(key, shape, minval=-0.7, maxval=0.7))


def _permutations(key, count, size):
  return jax.vmap(lambda key: jax.random.permutation(key, size))(jax.random.split(key, count))


def _reorder(params, columns, rows):
  """Puts columns and rows of modules in the blocks into an order for each layer."""
  take = lambda order_LF, axis: lambda x: jax.vmap(
      lambda x, order_F: jnp.take(x, order_F, axis))(x, order_LF)
  changes = {f'blocks/{name}/{leaf}': take(order_LF, -1) for name, order_LF in columns.items()
             for leaf in ('kernel', 'bias', 'scale')}
  return _change(params, changes | {f'blocks/{name}/kernel': take(order_LF, -2)
                                    for name, order_LF in rows.items()})


def _turn(params, change):
  """Applies `change(leaf, axis)` to all leaves with residual channels but gains."""
  return _change(params, {name: functools.partial(change, axis=axis)
                          for name, axis in _CHANNEL_AXIS.items() if not name.endswith('scale')})


def _change(params, changes):
  """Applies functions to leaves by name, and passes over names that the network lacks."""
  refuse_experts(params, changes)
  flat = flatten_dict(params, sep='/')
  changed = {name: change(flat[name]) for name, change in changes.items() if name in flat}
  return unflatten_dict(flat | changed, sep='/')
