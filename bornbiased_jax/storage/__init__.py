"""The doors through which models enter and leave.

- `.model`: `open`, which says what the name of a model means, and the `Model` that it returns
- `.architectures`: `canonical`, the name of an architecture that a file describes
- `.checkpoint`: orbax checkpoints of a training run, restored on any mesh
- `.digests`: digests, which name a model and reveal damage
- `.layers`: a model that is read layer by layer, from files or from memory
- `.huggingface`: models of `transformers`, in folders and in memory
- `.huggingface.families`: how each of its families names our fields and modules
- `.hub`: models of the Hugging Face Hub, fetched into such folders
"""

from bornbiased_jax.storage import hub, huggingface
from bornbiased_jax.storage.architectures import canonical
from bornbiased_jax.storage.checkpoint import Writer, load_params, steps
from bornbiased_jax.storage.digests import digest, leaf_digests
from bornbiased_jax.storage.model import Model, open

__all__ = (
    'open', 'Model', 'canonical', 'hub', 'huggingface', 'Writer', 'load_params', 'steps', 'digest',
    'leaf_digests',
)
