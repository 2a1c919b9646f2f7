"""Trains networks that differ only by seed, or continues a model (Tables 13, 14).

All seeds see the same data in the same order. A new folder begins from --resume (with its
optimizer) if given, else from --init_from (only parameters), else from the seeds; the command of a
stopped run continues it. With --config=tiny_gpt2,init_scheme=mup,tied_head=False one --peak_lr
suits all widths (muP): matrices of blocks and the head have it times 768 / width.

    python -m experiments.pretrain      # two tiny_llama2 on tinyshakespeare, 4 min on two CPU cores
    python -m experiments.pretrain --scale=continue --init_from=my_llama/ --seeds=42 \\
        --data=corpora/python --adapter=lora --rank=8

Writes checkpoints (for LoRA of the merged model), which storage.load_params reads, and
metrics.jsonl to OUTPUT_DIR/seed_SEED, and results.json (its loss is the mean of the last 5 % of
steps) and figure.png to OUTPUT_DIR. With the extra tensorboard, tensorboard --logdir=OUTPUT_DIR
shows the run while it goes on.
"""

from pathlib import Path

from bornbiased_jax.errors import InputError

from .shared import program, runs
from .shared.base_settings import Training as Settings
from .shared.settings import refuse


def main(settings: Settings, output_dir: Path) -> None:
  check_config(settings)
  runs.train(settings, output_dir)


def check_config(settings: Settings) -> None:
  """Raises InputError for a preset other than the scale's, given with a parent, which is a model.

  Also if no parent is given to go on from, at the scale `continue`.
  """
  if settings.scale == 'continue' and not runs.parent(settings):
    raise InputError('--init_from: is missing: what to go on from with --scale=continue, such as '
                     'results/pretrain_laptop (or --resume)')
  if runs.parent(settings):
    refuse(settings, ['config'], 'only without --resume and --init_from, which bring a model')


if __name__ == '__main__':
  program.run(main, 'pretrain', Settings, __doc__, several_hosts=True)
