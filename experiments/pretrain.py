"""Trains networks that differ in their seed alone, or trains them on (Table 13, 14).

All seeds see the same data in the same order. Small models train together on one device, larger
ones one after another on all devices.

    python -m experiments.pretrain      # two tiny_llama2 on tinyshakespeare, 4 min on two CPU cores
    python -m experiments.pretrain --data=corpora/english --valid=english_valid.jsonl.xz
    python -m experiments.pretrain --scale=continue --init_from=results/pretrain_laptop \\
        --data=corpora/python
    python -m experiments.pretrain --scale=continue --init_from=my_llama/ --seeds=42 \\
        --data=corpora/python --adapter=lora --rank=8

--data takes text (.txt, .jsonl, both also as .xz, folders of them, tfds:NAME), or a folder that
experiments.tokenize_text made. A new folder begins from --resume (with its optimizer) if given,
else from --init_from (parameters alone), else from the seeds. If a run was stopped, the same
command continues it from the latest checkpoint.

--adapter trains few parameters beside those of --init_from, which stay as they are. Checkpoints of
LoRA are of the merged network, and training.export_adapter makes a folder of PEFT of one. Those of
prefix_plus (Prefix-Tuning+, arXiv 2506.13674) are networks that transformers lacks.

--config=tiny_gpt2,init_scheme=mup,tied_head=False trains by muP: the matrices of blocks and the
head have the learning rate times 768 / width, so that one --peak_lr suits all widths.

For several hosts, give the same command with --distributed and a shared --output_dir on each. On
anything but TPU pods and Slurm, also give --coordinator=HOST:PORT --num_processes=N --process_id=I.

Writes the checkpoints, which storage.load_params reads, and metrics.jsonl, for which pandas has
read_json(lines=True), to OUTPUT_DIR/seed_SEED, and results.json and figure.png to OUTPUT_DIR. With
the extra tensorboard, tensorboard --logdir=OUTPUT_DIR shows the run while it goes on. On Linux a
program starts itself again with GLIBC_TUNABLES=glibc.malloc.hugetlb=1 unless the variable is set.
"""

from pathlib import Path

from bornbiased_jax.errors import InputError

from .shared import program, runs
from .shared.base_settings import Training as Settings
from .shared.settings import values_of


def main(settings: Settings, output_dir: Path) -> None:
  check_config(settings)
  runs.train(settings, output_dir)


def check_config(settings: Settings) -> None:
  """Raises InputError for a preset other than the scale's beside a parent, which is a model.

  Also if no parent is given to go on from, at the scale `continue`.
  """
  if settings.scale == 'continue' and not runs.parent(settings):
    raise InputError('--init_from: is missing: what to go on from with --scale=continue, such as '
                     'results/pretrain_laptop (or --resume)')
  if runs.parent(settings) and settings.config != values_of(Settings, 'config')[settings.scale]:
    raise InputError('--config: only without --resume and --init_from, which bring a model')


if __name__ == '__main__':
  program.run(main, 'pretrain', Settings, __doc__, several_hosts=True)
