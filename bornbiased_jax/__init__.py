"""Random transformers in JAX: their born bias, its cause, and what becomes of it.

Rooms, each importing only from those above it; lineage and training do not know each other:

  configs    a model as a frozen dataclass, and the presets of the paper
  models     the transformer, its initialization, loss and sharding
  analysis   probes, statistics, ensembles of seeds, theory, attention sinks
  data       text as batches of token ids
  storage    checkpoints, and directories of `transformers`
  training   a step, and a run from the first to the last
  lineage    fingerprints, SeedPrint and its peers, verdicts

Beside them errors, files, environment and plotting, which all share.
"""
