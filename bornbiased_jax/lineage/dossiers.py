"""Dossiers: all that a verdict reads of one network, taken once, saved, and compared later."""

from collections.abc import Callable
import dataclasses
import os
import zipfile

import numpy as np

from bornbiased_jax.analysis.probes import Probe
from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.files import path_of
from bornbiased_jax.lineage import archives, features, fingerprints, inventory, reading
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.inventory import Tensor

SCHEMA = 1
# Vectors per channel, so that they can be projected out of the answers.
_SEQUENCES_PER_CHANNEL = 4
_FINGERPRINTS = ('tokens', 'vectors')
# More than any network has; a file that claims more is not believed.
_MOST_LAYERS, _MOST_FEATURES = 1000, 2**17
_DIMENSIONS = dict.fromkeys(features.UNITS, 3) | dict.fromkeys(features.VALUES, 4)


@dataclasses.dataclass(frozen=True, eq=False)
class Dossier:
  """What is known of a network; None stands for what is not.

  Attributes:
    tokens: its answers to random tokens.
    vectors: its answers to random vectors of one length, one position each. Then nothing
      but the vector itself can be passed on, and norms do not make that nonlinear.
    sketch: its hidden features (`features.sketch`).
    tensors: its tensors by name (`inventory.take`).
    about: JSON that says which network it is.
  """

  tokens: Fingerprint | None
  vectors: Fingerprint | None
  sketch: dict[str, np.ndarray] | None
  tensors: dict[str, Tensor] | None
  about: dict

  @property
  def answers(self) -> Fingerprint:
    """Its answers to random tokens, or to vectors if no others are known."""
    known = self.tokens or self.vectors
    if known is None:
      raise InputError('a dossier without answers says nothing of a network')
    return known

  @property
  def width(self) -> int:
    """The number of residual channels."""
    return self.answers.input_ND.shape[1]

  def named(self, about: dict) -> 'Dossier':
    """The same dossier, of a network that is known as `about`."""
    return dataclasses.replace(self, about=about)

  def save(self, path: str | os.PathLike) -> None:
    """Writes an .npz file (arrays and JSON, no pickle), which appears whole or not at all.

    Raises:
      InputError: a part of the dossier is not known.
    """
    if self.sketch is None or self.tensors is None or None in (self.tokens, self.vectors):
      raise InputError('only a dossier of which every part is known can be saved')
    metadata = {'dossier': SCHEMA, 'about': self.about, 'tensors': {
        name: {'digest': each.digest, 'shape': each.shape} for name, each in self.tensors.items()}}
    arrays = {f'sketch_{name}': x for name, x in self.sketch.items()}
    arrays['samples'] = np.stack([each.sample for each in self.tensors.values()])
    for kind in _FINGERPRINTS:
      answers = getattr(self, kind)
      metadata[kind] = answers.metadata
      arrays |= {f'{kind}_{name}': getattr(answers, name) for name in fingerprints.ARRAYS}
    archives.write(path, arrays, metadata)


def take(config: ModelConfig, params: dict, probe: Probe, about: dict | None = None,
         on_batch: Callable[[int], None] = lambda sequences: None,
         parts: str | os.PathLike | None = None) -> Dossier:
  """The dossier of a network.

  Args:
    config: the architecture.
    params: parameters, as from `initialization.init_params`.
    probe: random tokens. The probe of vectors has as many sequences, or four per channel
      if these are more, and its seed.
    about: JSON that says which network it is.
    on_batch: called after each batch with its number of sequences.
    parts: folder for finished batches, as in `reading.fingerprint`.

  Raises:
    InputError: as `reading.fingerprint` does.

  Cost: a forward pass per sequence of the probe, and reading every tensor once.

  Example:
    >>> from bornbiased_jax import analysis, configs, models
    >>> config = configs.get('tiny_gpt2')
    >>> params = models.init_params(config, 42)
    >>> take(config, params, analysis.Probe('tokens', 100, 4)).vectors.hidden_ND.shape
    (512, 128)
  """
  part = lambda kind: parts and path_of(parts) / kind
  tokens = reading.fingerprint(config, params, probe, about=about, on_batch=on_batch,
                                    parts=part('tokens'))
  vectors = reading.fingerprint(reading.sized(config, params), params,
                                     vector_probe(config, probe), about=about,
                                     parts=part('vectors'))
  return Dossier(tokens, vectors, sketch=features.sketch(config, params),
                 tensors=inventory.take(params), about=about or {})


def vector_probe(config: ModelConfig, probe: Probe) -> Probe:
  """The probe of vectors that goes with a probe of tokens."""
  count = max(probe.num_sequences, _SEQUENCES_PER_CHANNEL * config.width)
  return Probe('sphere', count, 1, probe.seed)


def of_fingerprint(answers: Fingerprint) -> Dossier:
  """The dossier of a network of which nothing is known but its answers to one probe."""
  kinds = dict.fromkeys(_FINGERPRINTS)
  is_tokens = answers.metadata['probe'].get('kind', 'tokens') == 'tokens'
  kinds['tokens' if is_tokens else 'vectors'] = answers
  return Dossier(**kinds, sketch=None, tensors=None, about=answers.metadata['about'])


def load(path: str | os.PathLike) -> Dossier:
  """Loads a saved dossier, or a saved fingerprint, which may come from a stranger.

  Nothing in the file is executed, and sizes are checked before memory is taken.

  Raises:
    InputError: the file is neither, is damaged, or has values that are not finite.
  """
  with archives.opened(path) as (archive, metadata):
    if 'dossier' not in metadata:
      return of_fingerprint(fingerprints.from_archive(archive, metadata))
    if metadata['dossier'] != SCHEMA:
      raise InputError(f'a dossier of schema {metadata["dossier"]}; this version reads '
                       f'schema {SCHEMA}')
    answers = {kind: fingerprints.from_archive(archive, metadata[kind], f'{kind}_')
               for kind in _FINGERPRINTS}
    return Dossier(**answers, sketch=_sketch(archive), tensors=_tensors(archive, metadata),
                   about=_checked(isinstance(metadata['about'], dict), metadata['about']))


def _sketch(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
  names = {name.removesuffix('.npy') for name in archive.namelist()}
  found = {name: archives.array(archive, f'sketch_{name}', np.float32, dimensions)
           for name, dimensions in _DIMENSIONS.items() if f'sketch_{name}' in names}
  for group in (features.UNITS, features.VALUES):
    shapes = {found[name].shape[:-1] for name in group if name in found}
    _checked(len(shapes) <= 1 and (group[-1] in found) == (group[-2] in found), None)
  for x in found.values():
    _checked(0 < len(x) <= _MOST_LAYERS and 0 < x.shape[-1] <= features.SKETCH_SIZE
             and 0 < np.prod(x.shape[1:-1]) <= _MOST_FEATURES, None)
    length = np.linalg.norm(x.astype(np.float64), axis=-1)
    _checked(np.all((np.abs(length - 1) < 1e-3) | (length < 1e-3)), None)
  _checked('up' not in found or found['up'].shape[1] <= features.MOST_UNITS, None)
  return found


def _tensors(archive, metadata) -> dict[str, Tensor]:
  sample_MS = archives.array(archive, 'samples', np.float32, 2)
  _checked(sample_MS.shape == (len(metadata['tensors']), inventory.SAMPLE_SIZE)
           and np.isfinite(sample_MS).all(), None)
  return {_checked(isinstance(name, str), name):
          Tensor(str(each['digest']), tuple(map(int, each['shape'])), sample)
          for (name, each), sample in zip(metadata['tensors'].items(), sample_MS, strict=True)}


def _checked(holds, value):
  if not holds:
    raise ValueError('its parts do not fit each other')
  return value
