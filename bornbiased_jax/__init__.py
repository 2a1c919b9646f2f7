"""Random transformers in JAX: their born bias, its cause, and what becomes of it.

Modules, each importing only from those above it:

  configs                                a model as a frozen dataclass; presets
  transformer, flops                     the one Linen module; what it costs
  initialization                         a seed is a network
  probes, statistics                     random inputs; sums over outputs
  preference, similarity, positions      the statistics of the paper
  ensemble                               many networks at once
  simplified, theory                     the paper's simplified layers; closed forms
  huggingface, huggingface_families      networks of others, in and out
  tokenizers, text, memory_map, corpus   text as batches of tokens
  sharding, loss, training               a training step on any mesh
  errors, files, plotting                shared by all
"""
