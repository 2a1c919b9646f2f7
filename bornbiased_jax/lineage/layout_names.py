"""How transformers name the matrices of their layers, and how they fuse them.

Names are those inside a layer, without `.weight`. An entry belongs to a layer if all of its
names stand below one path. What comes first is taken first.
"""

import re

# gate, up and down. Without a gate, `up` holds both if it has twice the rows that `down` reads.
UNITS = (
    ('gate_proj', 'up_proj', 'down_proj'),
    ('linear_gate', 'up_proj', 'down_proj'),
    ('gate', 'up', 'down'),
    ('w1', 'w3', 'w2'),
    ('w1', 'v1', 'w2'),
    ('proj_up_gate', 'proj_up', 'proj_down'),
    ('c_fc_0', 'c_fc_1', 'c_proj'),
    ('w_in.w_0', 'w_in.w_1', 'w_out'),
    ('ffn_gate_exps', 'ffn_up_exps', 'ffn_down_exps'),  # GGUF's, these four.
    ('ffn_gate_shexp', 'ffn_up_shexp', 'ffn_down_shexp'),
    ('ffn_gate', 'ffn_up', 'ffn_down'),
    (None, 'ffn_up', 'ffn_down'),
    (None, 'gate_up_proj', 'down_proj'),
    (None, 'w13_weight', 'w2_weight'),
    (None, 'w13', 'w2'),
    (None, 'up_proj', 'down_proj'),
    (None, 'up', 'down'),
    (None, 'input_linear', 'output_linear'),
    (None, 'Wi', 'Wo'),
    (None, 'c_fc', 'c_proj'),
    (None, 'fc1', 'fc2'),
    (None, 'fc_in', 'fc_out'),
    (None, 'lin1', 'lin2'),
    (None, 'dense_h_to_4h', 'dense_4h_to_h'),
    (None, 'intermediate.dense', 'output.dense'),
    (None, 'dense.dense', 'output.dense'),
    (None, 'intermediate', 'output'),
    (None, 'layer_1', 'layer_2'),
    (None, 'feed_forward.key', 'feed_forward.value'),
    (None, 'ffn.0', 'ffn.2'),
)
# query, key, value and output. Where the value is missing, `key` or `query` holds all three.
HEADS = (
    ('q_proj', 'k_proj', 'v_proj', 'o_proj'),
    ('q_proj', 'k_proj', 'v_proj', 'out_proj'),
    ('q_proj', 'k_proj', 'v_proj', 'dense'),
    ('q_proj', 'k_proj', 'v_proj', 'Wo'),
    ('query', 'key', 'value', 'output'),
    ('self.query', 'self.key', 'self.value', 'output.dense'),
    ('self_attention.query_key', None, 'self_attention.value', 'output.dense'),
    ('query_proj', 'key_proj', 'value_proj', 'out_proj'),
    ('q_lin', 'k_lin', 'v_lin', 'out_lin'),
    ('Wq', 'Wk', 'Wv', 'dense'),
    ('wq', 'wk', 'wv', 'wo'),
    ('project_q', 'project_k', 'project_v', 'attention_out'),
    ('attn_q', 'attn_k', 'attn_v', 'attn_output'),
)
FUSED_HEADS = (
    ('query_key_value', 'dense'),
    ('qkv_proj', 'o_proj'),
    ('qkv_proj', 'out_proj'),
    ('gqkv_proj', 'o_proj'),
    ('c_attn', 'c_proj'),
    ('Wqkv', 'out_proj'),
    ('Wqkv', 'Wo'),
    ('wqkv', 'wo'),
    ('attn_qkv', 'attn_output'),
)
LATENT_HEADS = (
    ('kv_a_proj_with_mqa', 'kv_a_layernorm', 'kv_b_proj', 'o_proj'),
    ('attn_kv_a_mqa', 'attn_kv_a_norm', 'attn_kv_b', 'attn_output'),
    ('attn_kv_a_mqa', 'attn_kv_a_norm', 'attn_v_b', 'attn_output'),
)
# What multiplies each channel that `output` reads, or each unit: a gate or a gain of a norm.
GATES = 'gate_proj', 'output_gate', 'g_proj', 'linear_gate'
GAINS = ('attn_sub_norm', 'sub_norm', 'ffn_sub_norm', 'norm', 'o_norm')

# Fused rows come in blocks of query, key and value unless they come by head: all that one head
# for keys and values has, the value last.
BY_HEAD = ('query_key_value', 'wqkv')
BY_HEAD_TYPES = {'gpt_bigcode', 'minimax'}
BLOCK_TYPES = {'bailing_moe', 'bailing_moe_v2', 'chatglm', 'sarvam_moe'}
# Rows of gate and up take turns.
INTERLEAVED_TYPES = {'gpt_oss', 'inkling2', 'inkling2_text', 'inkling2_loop_text'}
# Heads h and h + H/2 write as one of twice the channels.
PAIRED_TYPES = {'diffllama'}
PARALLEL_TYPES = {'codegen'}  # [4, (query, value, key), heads, channels]

# Norms before a sublayer, and behind it. A norm that stands between two sublayers belongs to the
# second, unless another one does.
BEFORE_HEADS = (
    'input_layernorm', 'attention_norm', 'attn_norm', 'pre_attention_layernorm', 'operator_norm',
    'attention_layernorm', 'ln_1', 'ln1', 'norm_1', 'ln_attn', 'self_attn_layer_norm', 'norm',
    'norm_attn_norm.norm_1', 'layernorm1', 'temporal_pre_norm', 'attention.LayerNorm',
    'attention.self_attn_layer_norm', 'attention.ln', 'attention.layer_norm',
    'self_att.layernorm_before_attention', 'input_layernorm.norm')
BEFORE_UNITS = (
    'pre_feedforward_layernorm', 'pre_mlp_layernorm', 'pre_ff_layernorm', 'feedforward_layernorm',
    'ffn_norm', 'norm_ffn', 'mlp_norm', 'ln_2', 'ln2', 'norm_2', 'ln_mlp', 'final_layer_norm',
    'layernorm2', 'norm_attn_norm.norm_2', 'channel_pre_norm', 'ffn.layernorm_before_ffn',
    'intermediate.LayerNorm', 'LayerNorm', 'ln', 'feed_forward.layer_norm')
BETWEEN = 'post_attention_layernorm', 'post_attention_norm', 'post_attention_layernorm.norm'
BEHIND_HEADS = ('post_self_attn_layernorm', 'attention_output_norm')
BEHIND_UNITS = ('post_feedforward_layernorm', 'post_mlp_layernorm', 'mlp_output_norm',
                'post_ffw_norm')
# Norms of these scale by 1 + gain.
ZERO_CENTRED = re.compile(r'gemma[23]?(_text)?$|(vault|recurrent_)gemma|t5gemma|nemotron$'
                          r'|qwen3_(next|5)|qwen4|minimax_m3|step3p7')
# Norms take the mean away if they have biases, or by a setting of theirs, but for these.
CENTRED_TYPES = {'cohere2_moe', 'dbrx', 'modernbert', 'modernbert-decoder', 'olmo'}
NOT_CENTRED_TYPES = {'nemotron_h', 'rwkv'}
BIAS_OF_NORM = re.compile(r'(?<![qk]_)(?<![qk]_layer)(norm\w*|ln\w*)(\.\d+)?\.bias$', re.IGNORECASE)
# Between the norm and the sublayer stands something else: the residual stream, or a mix of tokens.
NORM_OF_STREAM = re.compile(r'openai-gpt|(pl)?bart|prophetnet|mvp|marian|trocr|xlm$'
                            r'|blenderbot-small|ctrl$|rwkv')

EMBEDDING = re.compile(r'(embed_tokens|tokens_embed|embed_in|wte|tok_embeddings|shared|embeddings?'
                       r'|token_embd|transformer\.w)(\.\d+)?$')
# What stands beside a language model. A stack with another name may be one.
_PART = r'''(^|\.) (?![^.]*(language|text|llm|lm([._]|$)|llama|qwen|gemma|mistral|gpt)) ([^.]*_)?'''
ASIDE = re.compile(_PART + r'''
    (vision|visual|vit|image|img|video|clip|siglip|sam2?|audio|speech|sound|whisper|beats|acoustic
    |semantic|perception|grounding|point|vae|codec|depth|depformer|protein|dna|chemberta|tower
    |qformer|perceiver|abstractor|resampler|projector|connector|merger|aligner|vqmodel|vpm|apm|tts
    |talker|token2wav|code2wav|prompt|caption|instruction|condition(ing|er)?|head|mtp|medusa
    |eagle(?!_model\.)|ea_layer|speculator|draft(er)?|teacher|frozen|ema|ref(erence)?|critic)
    ([._]|$)
    | (^|\.)[av]\.blk | cross_(attn|attend|modal) | resblocks
    | (?<![a-z])text_(encoder|backbone|branch) | (^|\.)text(_model|\.model)?\.([^.]+\.)*encoder
    | ^text_model\.layers$''', re.VERBOSE | re.IGNORECASE)
# Encoders of images, which can have more weights than the language model.
VISION = re.compile(_PART + r'(vision|visual) ([._]|$)', re.VERBOSE | re.IGNORECASE)
# What reads the states of an encoder.
CROSS = re.compile(r'cross|encoder_attn|EncDec|inter_att')
# What has a row for each token.
TABLE = re.compile(r'(emb|wte|wpe|shared|head|output|vocab|token|predictions)[^.]*(\.[^.]+){,2}$',
                   re.IGNORECASE)
NOT_READ = re.compile(r'lora|adapter|conv|mamba|linear_attn|encoder_attn|cross|indexer|router'
                      r'|att(entio)?n\.experts|shared_transf')
DRAFT = re.compile(r'(^|\.)(eh_proj|enorm|hnorm|shared_head)([.:]|$)')

# Later layers read the values of earlier ones, so that a layer has no heads of its own.
SHARED_VALUES = ('num_kv_shared_layers',)
NUM_HEADS = ('decoder_attention_heads', 'num_attention_heads', 'num_decoder_attention_heads',
             'n_head', 'n_heads', 'num_heads', 'attention_heads', 'encoder_attention_heads')
NUM_EXPERTS = ('moe_num_experts', 'num_experts', 'num_local_experts', 'n_routed_experts')
WIDTHS = ('hidden_size', 'd_model', 'n_embd', 'n_embed', 'dim_model', 'emb_dim', 'dim')
