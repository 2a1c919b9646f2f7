"""Text as batches of token ids.

- `.text`: documents from files, folders and prepared data sets
- `.tokenizers`: bytes, tokenizer.json, GPT-2's files and SentencePiece behind one interface
- `.tokenizer_files`: what `transformers` reads of a tokenizer
- `.memory_map`: token ids in a folder on disk
- `.corpus`: the token ids of a text
- `.windows`: the batch of them at each training step

The package contains one text, tinyshakespeare.txt.xz.
"""

from bornbiased_jax.data.corpus import Corpus, from_ids, hold_out, load, write
from bornbiased_jax.data.tokenizers import Tokenizer, load_tokenizer
from bornbiased_jax.data.windows import batch, spaced_windows

__all__ = (
    'Corpus', 'from_ids', 'hold_out', 'load', 'write', 'Tokenizer', 'load_tokenizer', 'batch',
    'spaced_windows',
)
