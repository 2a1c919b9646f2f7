"""How the kernels of accelerators divide their work, and where which attention is taken."""

import types

import jax
import numpy as np
import pytest

from bornbiased_jax import configs
from bornbiased_jax.models import attention, attention_tiles, sharding
from bornbiased_jax.models.attention_kernels import Spread, choose, cudnn, splash, splash_block
from bornbiased_jax.models.transformer import Transformer

mesh_shape = (2, 1, 2) if jax.device_count() == 4 else (jax.device_count(), 1, 1)
MESH = sharding.make_mesh(*mesh_shape)
ONE_DEVICE = types.SimpleNamespace(size=1, devices=np.array(jax.devices()[:1]))


@pytest.mark.parametrize('length, block, padded', [
    (1, 128, 128), (128, 128, 128), (129, 256, 256), (512, 512, 512), (513, 384, 768),
    (640, 384, 768), (2000, 512, 2048), (2048, 512, 2048),
])
def test_blocks_of_whole_tiles(length, block, padded):
  assert splash_block(length) == block and length + -length % block == padded


def test_equal_attention_makes_equal_models():
  make = lambda: Spread(splash, sharding.make_mesh(*mesh_shape))
  models = {Transformer(configs.get('tiny_llama2'), make()) for _ in range(2)}
  assert len(models) == 1 and models != {Transformer(configs.get('tiny_llama2'))}


GPUS = {'nothing known': {}, 't4': {'compute_capability': '7.5'},
        'a100': {'compute_capability': '8.0'}, 'b200': {'compute_capability': '10.0'},
        'mi300': {'compute_capability': 'gfx942'}}


@pytest.mark.parametrize('gpu', GPUS)
@pytest.mark.parametrize('fields, fits', [
    ({'dtype': 'bfloat16'}, True), ({'dtype': 'float32'}, False),
    ({'dtype': 'bfloat16', 'head_size': 192}, False),
    ({'dtype': 'bfloat16', 'head_size': 12}, False),
])
def test_the_choice_on_gpus(gpu, fields, fits):
  mesh = types.SimpleNamespace(size=1, devices=np.array([types.SimpleNamespace(**GPUS[gpu])]))
  chosen = choose(configs.get('nano_llama2', **fields), 2048, mesh, 'gpu')
  has_kernel = fits and gpu in ('a100', 'b200')
  assert chosen == (Spread(cudnn, mesh) if has_kernel else attention.plain)


def test_the_choice_elsewhere():
  config = configs.get('nano_llama2', dtype='bfloat16')
  assert choose(config, 2048, ONE_DEVICE, 'cpu') is attention_tiles.tiled
  assert choose(config, 2048, MESH, 'cpu') == Spread(attention_tiles.tiled, MESH)
  assert choose(config, 64, MESH, 'tpu') == Spread(attention.plain, MESH)
  assert choose(config, 2048, MESH, 'tpu') == Spread(splash, MESH)
  here = choose(config, 2048, MESH, jax.default_backend())
  assert choose(config, 2048, MESH) == here
