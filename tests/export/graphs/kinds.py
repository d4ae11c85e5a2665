"""Kinds of Transformers whose graphs tests verify, in sizes that all share, so that each is traced once per run."""

from tests.tiny import tiny_config

KINDS = {
    "rotary": tiny_config(
        "decoder", positions="rotary", norm="rms", num_kv_heads=2, gated=True, activation="silu", bias=False,
        head_dim=16, tie_embeddings=False, num_decoder_layers=1,
    ),
    "post-norm": tiny_config(
        norm_position="post", positions="learned", activation="gelu", num_kv_heads=1, tie_embeddings=False,
        num_encoder_layers=1, num_decoder_layers=1, max_source_len=29, max_target_len=21,
    ),
    "rotary-source": tiny_config(
        positions="rotary", norm="rms", norm_position="post", gated=True, activation="gelu", num_kv_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    ),
    "shaw": tiny_config("decoder", positions="shaw", position_range=3, num_decoder_layers=1),
    "bucketed": tiny_config(
        positions="bucketed", position_buckets=8, position_range=16, attention_scale=1.0, embedding_scale=1.0,
        num_kv_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    ),
    "alibi-window": tiny_config("decoder", positions="alibi", sliding_window=5, num_decoder_layers=1),
    "beside": tiny_config(
        positions="learned", position_dim=8, tie_embeddings=False, embedding_norm=True, output_bias=True,
        num_encoder_layers=1, num_decoder_layers=1,
    ),
    "parallel": tiny_config(
        "decoder", positions="rotary", head_dim=16, rotary_dims=8, rotary_scaling="llama3", rotary_factor=8.0,
        rotary_original_len=16, parallel_residual=True, qk_norm=True, bias=False, qkv_bias=True, norm="rms",
        num_kv_heads=2, gated=True, activation="silu", tie_embeddings=False, num_decoder_layers=1,
    ),
    "compressed": tiny_config("decoder", compression_stride=3, sliding_window=4, num_kv_heads=2),
    "layered": tiny_config(
        "decoder", positions="rotary", head_dim=16, num_kv_heads=1, norm="rms", norm_position="sandwich", bias=False,
        gated=True, activation="gelu_tanh", attention_scale=0.3, attention_softcap=2.0, logits_softcap=3.0,
        rotary_scaling="linear", rotary_factor=2.0, num_decoder_layers=3,
        layer_groups=({"layers": (0,), "sliding_window": 5, "rotary_base": 100.0, "rotary_scaling": "none"},
                      {"layers": (2,), "positions": "none"}),
    ),
    "whole-norms": tiny_config(
        "decoder", positions="rotary", head_dim=16, num_kv_heads=2, norm="rms", norm_position="res_post", bias=False,
        qk_norm=True, qk_norm_span="all", qk_norm_after_rotary=True, num_decoder_layers=1,
    ),
    "unequal-sides": tiny_config(encoder_num_heads=2, encoder_d_ff=96, num_encoder_layers=1, num_decoder_layers=1),
    "ssru": tiny_config(
        decoder_mixing="ssru", norm_position="post", sinusoids="tensor2tensor", output_bias=True,
        num_encoder_layers=1, num_decoder_layers=2,
    ),
    "experts": tiny_config(num_experts=3, num_encoder_layers=1, num_decoder_layers=1),
    "two-experts": tiny_config(
        "decoder", num_experts=4, experts_per_token=2, gated=True, activation="gelu", bias=False, num_decoder_layers=1
    ),
}  # fmt: skip

ADDITIVE = {  # changes to recurrent models, by scheme
    "fp32": {"cell": "gru", "score": "additive", "num_encoder_layers": 1, "num_decoder_layers": 1},
    "fp16": {"score": "additive", "attention_dim": 24, "num_encoder_layers": 1, "num_decoder_layers": 1},
}
