"""How many floating-point operations a forward pass is: the floor under every time."""

from bornbiased_jax.configs import ModelConfig


def forward_flops(config: ModelConfig, length: int, num_logits: int) -> int:
  """Matrix-product FLOPs of one sequence through the whole model.

  A multiply and an add count two. Attention counts its full T x T square;
  norms, activations and softmax count nothing.

  Args:
    config: the architecture.
    length: positions, T.
    num_logits: positions whose logits are computed (1: the last; T: all).
  """
  query_width = config.num_heads * config.head_size
  key_width = config.num_kv_heads * config.head_size
  attention = 2 * config.width * (query_width + key_width) + 2 * length * query_width
  mlp = (3 if config.gated_mlp else 2) * config.width * config.mlp_width
  a_token = {'full': attention + mlp, 'attention_only': attention, 'mlp_only': mlp}[config.sublayers]
  return 2 * (length * config.num_layers * a_token + num_logits * config.width * config.vocab_size)
