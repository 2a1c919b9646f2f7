"""The programs that measure what the paper reports, one per table or figure, and their tools."""

import os
import sys

# tqdm reads these when it is imported: bars never wrap, and fill no log file.
os.environ.setdefault('TQDM_DYNAMIC_NCOLS', '1')
if not (sys.stderr and sys.stderr.isatty()):
  os.environ.setdefault('TQDM_MININTERVAL', '10')

for _word, _module in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
  if _word == '-m' and _module.startswith((f'{__name__}.shared.', f'{__name__}.benchmarks.')):
    print(f'error: {_module} is no program; python -m {__name__} lists them', file=sys.stderr)
    sys.exit(2)
