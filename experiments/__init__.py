"""The programs that measure what the paper reports, one per table or figure, and their tools."""

import os
from pathlib import Path
import sys

# With huge pages a training step on a Linux CPU spares most of its page faults, a tenth of its
# time. The C library reads its settings at start, so the program starts itself again.
_is_program = sys.argv[0] == '-m' or Path(sys.argv[0]).name == 'bornbiased'
if sys.platform == 'linux' and _is_program and 'GLIBC_TUNABLES' not in os.environ:
  os.environ['GLIBC_TUNABLES'] = 'glibc.malloc.hugetlb=1'
  os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

# tqdm reads these when it is imported: bars never wrap, and fill no log file.
os.environ.setdefault('TQDM_DYNAMIC_NCOLS', '1')
if not (sys.stderr and sys.stderr.isatty()):
  os.environ.setdefault('TQDM_MININTERVAL', '10')

# A letter that the encoding of the output lacks is shown as its number.
if _is_program and sys.stdout:
  sys.stdout.reconfigure(errors='backslashreplace')

for _word, _module in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
  if _word == '-m' and _module.startswith(f'{__name__}.'):
    from .__main__ import check_name
    check_name(_module.split('.')[1])
