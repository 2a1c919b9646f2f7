"""The paper's models as presets with names, Pythia's smallest, and small ones for a CPU."""

import math
from typing import Any

# Each family as its differences from GPT-2, which the defaults of ModelConfig describe.
_LLAMA2 = dict(norm='rmsnorm', activation='silu', gated_mlp=True, qkv_bias=False,
               output_bias=False, mlp_bias=False, tied_head=False, length=2048)
_QWEN2 = dict(_LLAMA2, qkv_bias=True, norm_epsilon=1e-6)
# GPT-NeoX calls the std of its other layers 'small init' (Nguyen and Salazar 2019).
_SMALL_INIT_512 = math.sqrt(2 / (5 * 512))
_NANO = dict(num_layers=12, num_heads=12, width=768)
_TINY = dict(num_layers=4, num_heads=4, width=128, vocab_size=2048)

PRESETS: dict[str, dict[str, Any]] = {
    'nano_gpt2': dict(_NANO, mlp_width=3072, vocab_size=50257),
    'nano_llama2': dict(_LLAMA2, **_NANO, mlp_width=2048, vocab_size=32000),
    'nano_qwen2': dict(_QWEN2, **_NANO, mlp_width=3072, vocab_size=151936),
    'gpt2_1b2': dict(num_layers=24, num_heads=32, width=2048, mlp_width=8192, vocab_size=50257),
    'llama2_7b': dict(_LLAMA2, num_layers=32, num_heads=32, width=4096, mlp_width=11008,
                      vocab_size=32000, length=4096),
    'pythia_70m': dict(num_layers=6, num_heads=8, width=512, mlp_width=2048, vocab_size=50304,
                       length=2048, activation='gelu', rotary_factor=0.25, parallel_residual=True,
                       tied_head=False, init_scheme='wang', linear_std=_SMALL_INIT_512,
                       embedding_std=_SMALL_INIT_512),
    'tiny_gpt2': dict(_TINY, mlp_width=512),
    'tiny_llama2': dict(_LLAMA2, **_TINY, mlp_width=344),
    'tiny_qwen2': dict(_QWEN2, **_TINY, mlp_width=344),
    # As Mixtral, with as many units at work as tiny_llama2 has.
    'tiny_moe': dict(_LLAMA2, **_TINY, mlp_width=172, num_experts=8, experts_per_token=2),
}
