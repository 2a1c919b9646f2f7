"""Random transformers in JAX: their born bias, its cause, and what becomes of it.

Modules, each importing only from those above it:

  errors, files, environment, plotting   shared by all
  configs                                a model as a frozen dataclass; presets
  attention, interventions, transformer  the one Linen module; its kernels, and what is done to its positions
  flops, scale                           what a forward pass costs; what a compiled program moves
  initialization, probes                 a seed is a network; random inputs
  statistics                             sums over outputs, and of these:
  preference, similarity, positions      the statistics of the paper
  ensemble                               many networks at once
  simplified, theory                     the paper's simplified layers; closed forms
  sharding, checkpoint                   parameters on any mesh and on disk
  huggingface_families, huggingface      networks of others, in and out
  tokenizers, text, memory_map, corpus   text as batches of tokens
  loss, training, monitor, start, loop   a step, and a run from the first to the last
  fingerprints, sources                  what a network answers; networks by name
  kendall, published, seedprint          tau; the published test and the calibrated one
  alignment, verdict                     networks in another basis; what may be said of two
  alterations, baselines, methods        attacks; other fingerprints; all of them behind one interface
  attention_sink                         sinks, what goes with them, and losses of texts
"""
