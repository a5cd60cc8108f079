"""Sizes of the examples that tests try."""

NOTHING = {  # sizes that may be 0, one at a time
    **{
        name: ["M"]
        for name in (
            "cos_cos",
            "softmax",
            "log_softmax",
            "layernorm",
            "rmsnorm",
            "jacobi",
            "top1",
            "cumsum",
            "linear",
            "mlp",
        )
    },
    **{name: ["N"] for name in ("transpose", "gelu", "variance")},
    "batched_einsum": ["B", "I", "J"],
    "attention": ["B", "S"],
    "causal_attention": ["B", "H"],
    "attention_backward": ["B", "H"],
    "rotary": ["B", "S"],
    "embedding": ["B", "D"],
    "conv2d": ["N", "K"],
    "max_pool": ["N", "C"],
    "transformer_block": ["B"],
}
