"""Text as batches of token ids.

  text             documents from files, folders and data sets
  tokenizers       bytes, SentencePiece and GPT-2's BPE behind one interface
  memory_map       ids on disk, written so that a stopped run goes on
  corpus           ids of a text, and the batch at a step

tinyshakespeare.txt.xz is the one text that the package brings.
"""

from bornbiased_jax.data.corpus import Corpus, hold_out, load, write
from bornbiased_jax.data.tokenizers import Tokenizer
