"""Settings of programs: from them come flags, --help and what results.json says of a run.

- `.program`: what a setting is, and those that many programs have
- `.parsing`: from the text of a flag to its value
- `.networks`: settings of programs that compare networks
- `.training`: settings of programs that train
"""

from .program import (
  Depth,
  ExperimentSettings,
  Kind,
  Length,
  Lengths,
  NumSequences,
  ProbeData,
  ProbeKind,
  ProbeSeed,
  ProgramSettings,
  Seeds,
  Stacks,
  Tokenizer,
  Transformers,
  Width,
  as_text,
  default_text,
  defaults_of,
  kinds,
  name_flag,
  pick,
  resolve,
  setting,
  values_of,
)

__all__ = (
    'Depth', 'ExperimentSettings', 'Kind', 'Length', 'Lengths', 'NumSequences', 'ProbeData',
    'ProbeKind', 'ProbeSeed', 'ProgramSettings', 'Seeds', 'Stacks', 'Tokenizer', 'Transformers',
    'Width', 'as_text', 'default_text', 'defaults_of', 'kinds', 'name_flag', 'pick', 'resolve',
    'setting', 'values_of',
)
