"""The transformer, and the one function from a seed to a network.

  transformer      the Linen module, and `read`, which returns any intermediate by name
  attention        how weights and averages are computed: plainly, in blocks, by a fused kernel
  interventions    what the attention sink study does to the value aggregate
  initialization   a seed is a network
  loss             next-token loss without the logits of a whole batch in memory
  sharding         rules from parameter names to the axes of a mesh
  flops            floating-point operations of a forward pass, and how fast they can be
"""

from bornbiased_jax.models.flops import forward_flops, matmul_rate
from bornbiased_jax.models.initialization import init_params
from bornbiased_jax.models.loss import next_token_loss, token_losses
from bornbiased_jax.models.sharding import make_mesh
from bornbiased_jax.models.transformer import READS, Transformer, head_of, read
