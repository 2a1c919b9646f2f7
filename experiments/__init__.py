"""The programs that measure what the paper reports, one per table or figure, and their tools."""

import difflib
import os
from pathlib import Path
import signal
import sys

# As `python -m experiments` lists them.
PROGRAMS = {
    'measure': ('seed_sweep', 'ablation', 'activation', 'amplification', 'contraction',
                'intra_sequence', 'experts', 'real_text', 'through_training', 'initialization',
                'attention_sink', 'text_sinks'),
    'theory': ('coordinates', 'layer_theory', 'scaling'),
    'compare': ('seedprint', 'lineage', 'audit', 'adversary', 'baselines', 'calibrate',
                'forgetting', 'persistence', 'real_network', 'robustness', 'seedprint_tables',
                'spectra'),
    'train': ('pretrain', 'sample', 'export', 'tokenize_text', 'scale_plan', 'training_study',
              'born_unbiased', 'trained_experts'),
    'reproduce': ('reproduce', 'pages', 'benchmark'),
}
NAMES = tuple(name for group in PROGRAMS.values() for name in group)
FOLDER = Path(__file__).parent


def prepare(name: str) -> None:
  """Prepares this process for a program, before anything is imported; exit code 2 for no program.

  On Linux the process starts itself again, because the C library reads at start that it is to ask
  for huge pages, which spare most page faults, a tenth of a training step.
  """
  if name.partition('.')[0] not in NAMES or not source(name).is_file():
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f' (did you mean {near[0]}?)' if near else ''
    print(f'error: {name!r} is no experiment{hint}; there are {", ".join(sorted(NAMES))}',
          file=sys.stderr)
    sys.exit(2)
  if sys.platform == 'linux' and 'GLIBC_TUNABLES' not in os.environ:
    os.environ['GLIBC_TUNABLES'] = 'glibc.malloc.hugetlb=1'
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
  # While modules are imported nothing is lost: Ctrl-C ends the process at once, without a
  # traceback, and no import can swallow it. session.run says more from then on.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  # Figures go to files. A notebook's own backend, which its processes inherit, may be missing here.
  os.environ['MPLBACKEND'] = 'agg'
  # tqdm reads these when it is imported: bars never wrap, and fill no log file.
  os.environ.setdefault('TQDM_DYNAMIC_NCOLS', '1')
  if not (sys.stderr and sys.stderr.isatty()):
    os.environ.setdefault('TQDM_MININTERVAL', '10')
  if sys.stdout:  # A letter that the encoding of the output lacks is shown as its number.
    sys.stdout.reconfigure(errors='backslashreplace')


def source(name: str) -> Path:
  """The file of a program. A package may have a second one, such as audit.injections."""
  path = FOLDER / name.replace('.', '/')
  return path / '__main__.py' if path.is_dir() else path.with_suffix('.py')


# For `python -m experiments.NAME` Python imports this package before it looks for NAME.
if sys.argv[0] == '-m':
  _module = sys.orig_argv[-len(sys.argv)].removeprefix('-m')
  if _module.startswith(f'{__name__}.'):
    prepare(_module.removeprefix(f'{__name__}.'))
