"""Pairs of networks that an adversary made: unrelated ones that look related, and descendants.

How each is made is in unrelated_networks, patterned_networks and related_networks.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple

from bornbiased_jax.models import init_params

from ..small_networks.training import GPT2, LLAMA, NARROW, Pairs, fine_tune, of_both_widths, trained
from ..transforms import lossy, preserving, surgery
from . import patterned_networks as patterned
from . import related_networks as related
from . import unrelated_networks as unrelated
from .unrelated_networks import by_activation, with_public_embedding

Make = Callable[[int], Pairs]


class Construction(NamedTuple):
  """What an adversary did, from the number of networks to pairs of them.

  `truth` is 'unrelated', 'shared ingredient', 'same seed' or 'descendant'. Of a descendant
  `by_principle` the MLP units are in another order, like in networks that share an ingredient
  are; 'inconclusive' is right.
  """

  truth: str
  make: Make
  by_principle: bool = False


_partial = functools.partial
_MANY_UNITS = dataclasses.replace(GPT2, mlp_width=512)
_WIDE = dataclasses.replace(LLAMA, mlp_width=192)


def _with(strength, change):
  return _partial(change, strength=strength)


def _by(*changes, **options):
  return _partial(related.descendants, changes, **options)


_of_trained = _partial(_partial, unrelated.changed, LLAMA)
_with_embedding = _partial(_of_trained, start=with_public_embedding)
_of_random = _partial(_of_trained, start=init_params)


def _structure(mix):
  return _of_random(_partial(patterned.structure, mix))


_UNRELATED: dict[str, Make] = {
    'one text (width 16)': _partial(unrelated.changed, NARROW, unrelated.unchanged),
    'one text (width 32)': _of_trained(unrelated.unchanged),
    'one text (GPT-2)': _partial(unrelated.changed, GPT2, unrelated.unchanged),
    'mimetic init': _partial(patterned.mimetic, False),
    'mimetic init (trained)': _partial(patterned.mimetic, True),
    'frozen public embedding': _with_embedding(unrelated.unchanged),
    'public embedding (50 % of rows)': _partial(unrelated.public_rows, 0.5),
    'public embedding (90 % of rows)': _partial(unrelated.public_rows, 0.9),
    'frozen sinusoids': unrelated.sinusoids,
    'sorted channels': _of_trained(unrelated.sort_channels),
    'sorted units (public embedding)':
        _with_embedding(_partial(unrelated.sort_units, by_activation)),
    'sorted by norm (public embedding)': _partial(
        unrelated.changed, _MANY_UNITS, _partial(unrelated.sort_units, surgery.written_norms),
        start=with_public_embedding),
    'sorted and cut (GPT-2, public embedding)': _partial(
        unrelated.sorted_and_cut, _MANY_UNITS, with_public_embedding, surgery.written_norms),
    'sorted and cut (LLaMA, by activation)':
        _partial(unrelated.sorted_and_cut, LLAMA, with_public_embedding, by_activation),
    'sorted and cut (own embeddings)':
        _partial(unrelated.sorted_and_cut, _WIDE, trained, surgery.written_norms),
    'MatFormer and an extracted half': unrelated.extracted_half,
    'values in the order of singular values': _with_embedding(unrelated.order_values),
    'nested dropout': _of_trained(
        unrelated.unchanged, start=_partial(trained, loss=unrelated.nested_dropout)),
    'students of one teacher': unrelated.students,
    'one outlier channel': _of_trained(unrelated.widen),
    'bfloat16': _of_trained(unrelated.in_bfloat16),
    'int4 on both sides (unrelated)': _of_trained(unrelated.in_four_bits),
    'one quantization scale': _of_trained(unrelated.with_one_scale),
    # As where a multiplier of muP was folded into it.
    'embedding of std 1': _partial(
        unrelated.changed, dataclasses.replace(LLAMA, embedding_std=1.0), unrelated.unchanged,
        start=init_params),
    'tiled units': _structure(patterned.tile),
    'one sparsity mask': _structure(patterned.mask),
    'one sparsity mask (turned)': patterned.turned_mask,
    '2:4 sparsity, one mask': patterned.one_mask_of_two_in_four,
    'public factor of low rank': _structure(patterned.low_rank),
    'repeated value channels': _of_random(patterned.repeat_values),
    'near the identity': _structure(patterned.add_identity),
    'weakly near it (4 and 5 layers)':
        _partial(patterned.near_public, patterned.identity, (4, 5), 1.0),
    'weakly near it (6 layers)': _partial(patterned.near_public, patterned.identity, (6, 6), 1.0),
    'near it in one layer': _partial(patterned.near_public, patterned.in_first_layer, (4, 4), 8.0),
    'near it and its reverse in turn':
        _partial(patterned.near_public, patterned.alternating, (4, 4), 1.5),
    'grown by stacking': patterned.stacked,
}
_SHARED_INGREDIENT: dict[str, Make] = {
    'public adapter merged': _of_trained(unrelated.merge_adapter),
    'task vector merged': _of_trained(unrelated.merge_task_vector),
    'one noise in training': _of_trained(
        unrelated.unchanged, start=_partial(trained, loss=unrelated.with_one_noise)),
    'values distilled channel by channel': unrelated.values_distilled,
    'values distilled (narrower MLPs)': unrelated.values_distilled_to_narrower,
    'queries and keys kept': _of_trained(unrelated.keep_queries_and_keys),
    'near a public matrix of each layer':
        _partial(patterned.near_public, patterned.own_permutation, (6, 6), 1.0),
}

_ALL_SEVEN = (preserving.permute_units, preserving.permute_heads, preserving.rotate_channels,
              preserving.flip_channels, preserving.mix_values, preserving.turn_queries,
              preserving.scale_channels)
_ROTATED = preserving.rotate_channels
_INT4 = _with(4, lossy.quantize)
_CUT_CHANNELS = _with(0.25, surgery.cut_channels)
_RENUMBERED = _with(0.0, surgery.trim_vocabulary)
_HALF_UNITS = _with(0.5, lossy.remove_units)
_DEEP = dict(configs=related.DEEP)
# A base that was trained on as well, with batches that its descendant did not see.
_DEEP_TUNED = _DEEP | dict(of_base=[_partial(fine_tune, data_seed=2)])
_AT_A_HIGH_RATE = _partial(fine_tune, strength=1 / 3, peak_lr=3e-2)

_SAME_SEED: dict[str, Make] = {
    'one seed (2 and 3 layers)': related.one_seed,
    'public start (ZerO)': _partial(related.public_start, related.zero_start),
    'public start (Weyl)': _partial(related.public_start, related.weyl_start),
}
_DESCENDANTS: dict[str, Make] = {
    'channels change sign': _by(preserving.flip_channels),
    'channels permuted': _by(preserving.permute_channels),
    'heads permuted': _by(preserving.permute_heads),
    'values mixed': _by(preserving.mix_values),
    'values mixed and rotated': _by(preserving.mix_values, _ROTATED),
    'rotated (QuaRot)': _by(_ROTATED, surgery.rotate_values, _with(8, lossy.quantize)),
    'rotated (average 0.5)': _by(_ROTATED, _with(0.5, lossy.average)),
    'rotated, vocabulary redrawn': _by(_ROTATED, _with(1.0, lossy.redraw_tokens)),
    'rotated, vocabulary trimmed': _by(_ROTATED, _with(0.5, surgery.trim_vocabulary)),
    'embedding redrawn (trained on)': _by(related.redraw_tokens),
    'trained on at a high rate': _by(_AT_A_HIGH_RATE, _ROTATED),
    'average (0.3 of the base)': _by(_with(0.7, lossy.average)),
    'low rank of the same size': _by(_with(1.0, lossy.add_low_rank)),
    'int4 on both sides': _by(_with(0.3, lossy.add_noise), _INT4, of_base=[_INT4]),
    'sparse (noise 0.5)': related.sparse,
    '2:4 sparsity on both sides': _by(fine_tune, surgery.prune_two_of_four,
                                      of_base=[surgery.prune_two_of_four]),
    'half of the units': _by(_HALF_UNITS),
    'a quarter of 1,024 units cut': _by(_with(0.25, lossy.remove_units), configs=[related.LARGE]),
    'MatFormer half of its own': _by(_with(0.5, surgery.keep_first_units), fine_tune,
                                     loss=of_both_widths),
    'heads cut': _by(_with(0.25, surgery.cut_heads), fine_tune),
    'channels cut': _by(_CUT_CHANNELS, fine_tune),
    'channels and units cut': _by(_CUT_CHANNELS, _HALF_UNITS, fine_tune, surgery.sort_units),
    'layers repeated': _by(_with(0.5, lossy.repeat_layers)),
    'SOLAR stack': _by(_with(0.5, lossy.repeat_layers), fine_tune, **_DEEP_TUNED),
    'LLaMA-Pro stack': _by(_with(0.5, surgery.insert_zero_layers), fine_tune, **_DEEP_TUNED),
    'layers swapped': _by(surgery.swap_layers, fine_tune, **_DEEP),
    'layer moved': _by(surgery.move_layer, **_DEEP),
    'rotated, layer dropped, tokens renumbered': _by(
        _ROTATED, surgery.drop_layer, _RENUMBERED, **_DEEP),
    'rotated, layer moved, tokens renumbered': _by(
        _ROTATED, surgery.move_layer, _RENUMBERED, **_DEEP),
    'rotated, layers averaged, tokens renumbered': _by(
        _ROTATED, surgery.average_layers, _RENUMBERED, **_DEEP),
    'rotated, stacked, tokens renumbered': _by(
        _ROTATED, _with(0.5, lossy.repeat_layers), _RENUMBERED, **_DEEP),
    'trained on (1e-2), rotated, layer dropped, tokens renumbered': _by(
        _partial(fine_tune, strength=1 / 3, peak_lr=1e-2), _ROTATED, surgery.drop_layer,
        _RENUMBERED, **_DEEP),
    'trained on (3e-2), rotated, layer dropped, tokens renumbered': _by(
        _AT_A_HIGH_RATE, _ROTATED, surgery.drop_layer, _RENUMBERED, **_DEEP),
    'every other layer redrawn': _by(surgery.redraw_every_other, **_DEEP),
    'stitched with another network': _by(related.stitch_with_public, **_DEEP),
}
_BY_PRINCIPLE: dict[str, Make] = {
    'units permuted': _by(preserving.permute_units),
    'units and heads permuted': _by(preserving.permute_units, preserving.permute_heads),
    'units permuted and rotated': _by(preserving.permute_units, _ROTATED),
    'all seven changes': _by(*_ALL_SEVEN),
    'all seven changes (noise 0.5)': _by(*_ALL_SEVEN, _with(0.5, lossy.add_noise)),
    'all seven changes, tokens renumbered': _by(*_ALL_SEVEN, _RENUMBERED),
    'all seven changes, layer dropped, tokens renumbered': _by(
        *_ALL_SEVEN, surgery.drop_layer, _RENUMBERED, **_DEEP),
    'trained on (5 %), all seven changes, tokens renumbered': _by(
        _partial(fine_tune, strength=0.05), *_ALL_SEVEN, _RENUMBERED),
    'rare tokens spoiled (and all seven)': _by(related.spoil_rare_tokens, *_ALL_SEVEN),
    'sorted, rotated, tokens renumbered': _by(
        surgery.sort_units, surgery.rotate_values, related.redraw_tokens,
        _RENUMBERED),
}

CONSTRUCTIONS: dict[str, Construction] = {
    **{name: Construction('unrelated', make) for name, make in _UNRELATED.items()},
    **{name: Construction('shared ingredient', make) for name, make in _SHARED_INGREDIENT.items()},
    **{name: Construction('same seed', make) for name, make in _SAME_SEED.items()},
    **{name: Construction('descendant', make) for name, make in _DESCENDANTS.items()},
    **{name: Construction('descendant', make, True) for name, make in _BY_PRINCIPLE.items()},
}
