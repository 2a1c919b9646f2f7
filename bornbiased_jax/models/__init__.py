"""The transformer, and the one function that turns a seed into a network.

- `.transformer`: the Linen module, and `read`, which returns any intermediate by name
- `.block`: one block of it: attention and MLP with their norms
- `.layers`: linear layers, the MLP of a block, and mixtures of experts
- `.attention`: how attention is computed: by the definition, in blocks, or by head
- `.attention_kernels`: by the kernels of accelerators, on several devices, and which to take
- `.attention_tiles`: in tiles that fit into a CPU's cache, with a gradient of its own
- `.interventions`: the changes of the value aggregate that the attention-sink study compares
- `.rotary`: rotary positions, scaled or not
- `.initialization`: keys that no setting of the process changes, and from a seed to parameters
- `.loss`: losses that never hold the logits of a whole batch
- `.batches`: how many sequences a device takes at once
- `.sampling`: ids drawn one after another from a model's own predictions
- `.sharding`: rules from the names of parameters to the axes of a mesh of devices
- `.flops`: floating-point operations of a forward pass, and the rate a device reaches
"""

from bornbiased_jax.models.flops import forward_flops
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.loss import next_token_loss, strided_loss, token_losses
from bornbiased_jax.models.sampling import sample
from bornbiased_jax.models.sharding import make_mesh
from bornbiased_jax.models.transformer import READS, Transformer, head_of, read

__all__ = (
    'forward_flops', 'init_params', 'next_token_loss', 'strided_loss',
    'token_losses', 'sample', 'make_mesh', 'READS', 'Transformer', 'head_of', 'read',
)
