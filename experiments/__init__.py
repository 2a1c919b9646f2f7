"""The programs that measure what the paper reports, one per table or figure, and their tools."""

import sys

# For `python -m experiments.NAME` Python imports this package before it looks for NAME.
if sys.argv[0] == '-m':
  _module = sys.orig_argv[-len(sys.argv)].removeprefix('-m')
  if _module.startswith(f'{__name__}.'):
    from .shared import launcher
    launcher.prepare(_module.removeprefix(f'{__name__}.'))
