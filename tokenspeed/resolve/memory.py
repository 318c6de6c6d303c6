"""Bytes of everything that one rank keeps on its device."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tokenspeed.plan import MemoryItem, ModelConfig, WeightFormat

# format -> elements and bytes of a block along the input axis.
BLOCKS = {
    WeightFormat.FLOAT32: (1, 4),
    WeightFormat.BFLOAT16: (1, 2),
    WeightFormat.Q4_1: (32, 20),
    WeightFormat.Q8_0: (32, 34),
}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}

# Sampling keeps, per row and vocabulary entry: the logits and their sorted copy (float32 each)
# and the order (int64).
LOGIT_BYTES = 4 + 4 + 8
# The interpreter with torch and its workspaces: resident, before any weight (CPU); the CUDA
# context, library workspaces and the allocator's rounding (GPU).
RUNTIME_BYTES = {"cpu": 512 * 2**20, "cuda": 1536 * 2**20}


def matrix_bytes(weight_format: WeightFormat, elements: int) -> int:
    """Bytes of matrices whose input axes are whole blocks."""
    block, size = BLOCKS[weight_format]
    return elements // block * size


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's share of the model under tensor parallelism over `tp` ranks.

    Heads and the inner axis are split; with fewer kv heads than ranks each rank keeps a copy of
    one. Norms are on every rank. The embedding's rows are split, the last rank may have fewer.
    """

    config: ModelConfig
    tp: int

    @property
    def heads(self) -> int:
        return self.config.num_heads // self.tp

    @property
    def kv_heads(self) -> int:
        return max(1, self.config.num_kv_heads // self.tp)

    @property
    def inner(self) -> int:
        return self.config.intermediate_size // self.tp

    @property
    def linear_elements(self) -> int:
        """Elements of the layers' matrices."""
        config = self.config
        attention = (2 * self.heads + 2 * self.kv_heads) * config.head_dim * config.hidden_size
        return config.num_layers * (attention + 3 * self.inner * config.hidden_size)

    @property
    def vocab_elements(self) -> int:
        """Elements of the embedding, and of the output matrix where it is a matrix of its own."""
        return ceil(self.config.vocab_size / self.tp) * self.config.hidden_size

    @property
    def vector_elements(self) -> int:
        """Elements of norms and biases."""
        config = self.config
        layer = 2 * config.hidden_size
        layer += 2 * config.head_dim if config.qk_norm else 0
        layer += (self.heads + 2 * self.kv_heads) * config.head_dim if config.qkv_bias else 0
        layer += config.hidden_size if config.o_bias else 0
        layer += 2 * self.inner + config.hidden_size if config.mlp_bias else 0
        return config.num_layers * layer + config.hidden_size

    def input_widths(self) -> tuple[int, ...]:
        """Input axes of the layers' products, ascending, each once."""
        query = self.heads * self.config.head_dim
        return tuple(sorted({self.config.hidden_size, query, self.inner}))


def weight_bytes(
    shard: Shard, linear: WeightFormat, embedding: WeightFormat, activations: str
) -> int:
    """Exact bytes of the weights of one rank. Vectors are kept in the activations' type."""
    total = matrix_bytes(linear, shard.linear_elements)
    total += matrix_bytes(embedding, shard.vocab_elements)
    if not shard.config.tie_embeddings:
        total += matrix_bytes(linear, shard.vocab_elements)
    return total + shard.vector_elements * DTYPE_BYTES[activations]


def kv_block_bytes(shard: Shard, block_size: int, dtype: str) -> int:
    """Bytes of one cache block on one rank: keys and values of every layer."""
    per_token = 2 * shard.config.num_layers * shard.kv_heads * shard.config.head_dim
    return per_token * block_size * DTYPE_BYTES[dtype]


def activation_bytes(shard: Shard, step_tokens: int, activations: str) -> int:
    """Peak of the values that live at once while a step runs through one layer.

    The residual and the normed input, and the larger of: attention (q, k, v, and q and the result
    again) or the feed-forward (gate and up, and their product).
    """
    config = shard.config
    query = shard.heads * config.head_dim
    attention = query + 2 * shard.kv_heads * config.head_dim + 2 * query
    width = 2 * config.hidden_size + max(attention, 3 * shard.inner)
    return step_tokens * width * DTYPE_BYTES[activations]


def logit_bytes(config: ModelConfig, max_running: int) -> int:
    return max_running * config.vocab_size * LOGIT_BYTES


def rope_table_bytes(config: ModelConfig, max_model_len: int) -> int:
    """cos and sin of every position, float32."""
    return max_model_len * config.rope.rotary_dim * 4


def fixed_items(
    shard: Shard,
    *,
    device: str,
    weights: int,
    weights_note: str,
    step_tokens: int,
    max_running: int,
    max_model_len: int,
    activations: str,
) -> tuple[MemoryItem, ...]:
    """Everything but the cache and the headroom."""
    config = shard.config
    return (
        MemoryItem(name="weights", bytes=weights, note=weights_note),
        MemoryItem(
            name="activations",
            bytes=activation_bytes(shard, step_tokens, activations),
            note=f"peak of one layer at {step_tokens} tokens a step, {activations}",
        ),
        MemoryItem(
            name="logits",
            bytes=logit_bytes(config, max_running),
            note=f"{max_running} rows of {config.vocab_size}, with sampling's sorted copy",
        ),
        MemoryItem(
            name="rope table",
            bytes=rope_table_bytes(config, max_model_len),
            note=f"{max_model_len} positions, float32",
        ),
        MemoryItem(
            name="runtime",
            bytes=RUNTIME_BYTES[device],
            note="context, libraries and their workspaces",
        ),
    )
