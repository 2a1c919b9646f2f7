"""Hidden states of a model that is read layer by layer: time, memory, and going on after a kill.

The model is a random one in the shape of Llama 3.2 3B, in bfloat16. It takes 6.4 GB on disk, and
is removed afterwards.
"""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from bornbiased_jax.configs import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import flops
from bornbiased_jax.models.initialization import num_parameters
from bornbiased_jax.storage import huggingface

SHAPE = dict(model_type='llama', vocab_size=128256, hidden_size=3072, intermediate_size=8192,
             num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, head_dim=128,
             hidden_act='silu', max_position_embeddings=131072, rms_norm_eps=1e-5,
             tie_word_embeddings=True, rope_theta=500000.0)
PROBE = dict(num_sequences=1000, length=16)

# Reads a model. As often as an environment variable says, it kills itself half way.
_PROGRAM = '''
import json, os, signal, sys, time
from bornbiased_jax import lineage
from bornbiased_jax.analysis import Probe
from bornbiased_jax.models import flops
from bornbiased_jax.models.initialization import num_parameters

model, cache, probe, kills = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
start, times, read = time.monotonic(), [], [0]

def watch(sequences):
  times.append(time.monotonic() - start)
  read.append(read[-1] + sequences)
  if kills and read[-1] >= probe['num_sequences'] / 2:
    os.kill(os.getpid(), signal.SIGKILL)

lineage.states(model, Probe('tokens', **probe), cache, stream='always', on_batch=watch)
seconds = time.monotonic() - start
peak, = (1024 * int(line.split()[1]) for line in open('/proc/self/status') if 'VmHWM' in line)
print(json.dumps({'seconds_reading_all_once': times[0], 'seconds_of_layers': times[-1] - times[0],
                  'share_of_layers': 1 - read[1] / read[-1], 'seconds': seconds,
                  'peak_bytes': peak, 'matmul_flops': flops.matmul_rate('float32')}))
'''


def streaming() -> list[dict]:
  with tempfile.TemporaryDirectory(prefix='bornbiased_') as folder:
    return [row(Path(folder), SHAPE, PROBE)]


def row(folder: Path, shape: dict, probe: dict) -> dict:
  """Makes a model, and reads it in two processes; the first is killed, the second is timed."""
  config = make(folder / 'model', shape)
  arguments = [str(folder / 'model'), str(folder / 'cache'), json.dumps(probe)]
  launch = lambda kills: subprocess.run([sys.executable, '-c', _PROGRAM, *arguments, str(kills)],
                                        capture_output=True, text=True)
  killed, done = launch(1), launch(0)
  if killed.returncode != -signal.SIGKILL or done.returncode:
    raise InputError(f'a process of the benchmark failed: {(killed.stderr + done.stderr)[-300:]}')
  found = json.loads(done.stdout.splitlines()[-1])
  num_flops = probe['num_sequences'] * flops.forward_flops(config, probe['length'], 0)
  # The head is not used. The last layer, where only keys and values are computed at all
  # positions, does not count.
  share = found['share_of_layers'] - 1 / config.num_layers
  rate = num_flops * share / found['seconds_of_layers']
  return {'benchmark': 'layer by layer', 'parameters': num_parameters(config),
          'bytes_on_disk': sum(file.stat().st_size for file in (folder / 'model').iterdir()),
          'num_layers': config.num_layers, 'cores': len(os.sched_getaffinity(0)),
          **probe, 'flops': num_flops, **found, 'flops_per_second': rate,
          'share_of_matmul_rate': rate / found['matmul_flops']}


def make(path: Path, shape: dict) -> ModelConfig:
  """Writes a random Llama in bfloat16, with a file for each layer, one at a time in memory."""
  path.mkdir()
  (path / 'config.json').write_text(json.dumps(shape))
  index = {}
  for layer in range(-1, shape['num_hidden_layers']):
    tensors = {name: _normal((layer + 1, number), size) if isinstance(size, tuple) else
               np.ones(size, ml_dtypes.bfloat16)
               for number, (name, size) in enumerate(_sizes(shape, layer).items())}
    name = f'model-{layer + 2:05d}-of-{shape["num_hidden_layers"] + 1:05d}.safetensors'
    save_file(tensors, path / name)
    index |= dict.fromkeys(tensors, name)
  (path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': index}))
  return huggingface.load_config(path)


def _sizes(shape, layer) -> dict[str, tuple[int, int] | int]:
  """Matrices and gains of a layer, or, for -1, outside of all layers."""
  width, hidden, K = shape['hidden_size'], shape['intermediate_size'], shape['head_dim']
  if layer < 0:
    return {'model.embed_tokens.weight': (shape['vocab_size'], width), 'model.norm.weight': width}
  query, key = K * shape['num_attention_heads'], K * shape['num_key_value_heads']
  sizes = {'self_attn.q_proj': (query, width), 'self_attn.k_proj': (key, width),
           'self_attn.v_proj': (key, width), 'self_attn.o_proj': (width, query),
           'mlp.gate_proj': (hidden, width), 'mlp.up_proj': (hidden, width),
           'mlp.down_proj': (width, hidden), 'input_layernorm': width,
           'post_attention_layernorm': width}
  return {f'model.layers.{layer}.{name}.weight': size for name, size in sizes.items()}


def _normal(seed, size):
  random = np.random.default_rng(seed)
  return (0.02 * random.standard_normal(size, np.float32)).astype(ml_dtypes.bfloat16)
