"""What settings can be, as words alone, so that a program's --help needs no JAX."""

PROBES_OF_TEXT = 'text', 'shuffled'
PROBES_OF_IDS = ('tokens', 'pairs', *PROBES_OF_TEXT)
PROBES = (*PROBES_OF_IDS, 'gaussian', 'sphere')
# How networks of `transformers` are read: layer by layer if they do not fit, always or never.
STREAM = 'auto', 'always', 'never'
FORMS = ('RUN, RUN@STEP, a transformers directory, a GGUF file, ORG/MODEL[@REVISION] of the '
         'Hugging Face Hub, BASE+ADAPTER, a saved signature (.safetensors), or PRESET:SEED')
# What alone is trained (training/adapters.py), and the rank of LoRA if none is given.
ADAPTERS, RANK = ('lora', 'prefix_plus'), 8
