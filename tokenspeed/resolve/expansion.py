"""Whether rows of many new tokens make keys and values of the latents, from how many on, and how
many tokens' at once.

Of a head with rank R and N, E and V values of a key without positions, with them, and of a value, a
query meets a token in 2 R + E products where it is absorbed, and in N + E + V where the token's key
and value are there, which take R (N + V) to make, once for all queries. Their number of heads does
not matter, nor how long the context is: making them pays from R (N + V) / (2 R - N - V) queries on
that meet each token, each kind of product weighed by how fast the device does it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tokenspeed.plan import ExpansionPlan, KernelChoice, LatentAttention, MemoryItem
from tokenspeed.recipe.kinds import format_size
from tokenspeed.resolve.ledger import DEFAULT, HARDWARE, MODEL, Ledger
from tokenspeed.resolve.shard import DTYPE_BYTES, Shard

OP = "latent_extend"
# Keys and values of a chunk. On a GPU its few launches cost more than its memory traffic, which
# hides behind the products; a CPU keeps it in its caches.
CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 2**30, "rocm": 256 * 2**20}
LEAST_CHUNK = 128
# Maximum and sum of a query, beside its values.
SUMS = 2
# A GPU parts the keys of a q tile among programs, with sums for each: rows of so many q tiles more.
MORE_ROWS = 2 * 132 * 128


class Speeds(NamedTuple):
    """Of products, beside each other: of absorbed queries with latents, of others with keys and
    values, and of those that make these."""

    absorbed: float
    expanded: float
    made: float


ALIKE = Speeds(1, 1, 1)
# TFLOP/s on one H200 (kernels/bench/results/nvidia-h200.json), by the bytes of a latent's value.
CUDA = {2: Speeds(265, 628, 620), 1: Speeds(119, 628, 620)}
# Such a step has no captured graph. Launching a layer of it takes about as long as making the keys
# and values of so many tokens.
LAUNCH_TOKENS = 32768


def settle_expansion(
    choices: Sequence[KernelChoice],
    shard: Shard,
    kind: str,
    activations: str,
    kv_dtype: str,
    ledger: Ledger,
) -> ExpansionPlan | None:
    """None where all rows are absorbed. `kind` of the device."""
    mixers = _latents(shard)
    if not mixers:
        return None
    speeds = CUDA.get(DTYPE_BYTES[kv_dtype], ALIKE) if kind == "cuda" else ALIKE
    least = max(_least_reuse(mixer, speeds) for mixer in mixers)
    if not any(choice.op == OP and choice.kernel for choice in choices):
        why = f"every query is absorbed: this device has no kernel of {OP}"
        ledger.note("expansion", None, DEFAULT, why)
        return None
    tp, element = shard.parallel.attention_tp, DTYPE_BYTES[activations]
    widest = max(_token_values(mixer, tp) for mixer in mixers) * element
    chunk = LEAST_CHUNK
    while 2 * chunk * widest <= CHUNK_BYTES[kind]:
        chunk *= 2
    mixer = mixers[0]
    made, saved = mixer.nope_dim + mixer.value_dim, 2 * mixer.kv_rank
    why = (
        f"expanding a token costs {mixer.kv_rank} x {made} multiply-adds a head and saves "
        f"{saved} - {made} per query"
    )
    if speeds is not ALIKE:
        why += f"; measured TFLOP/s: {speeds.made:g} expanding, {speeds.absorbed:g} absorbed, "
        why += f"{speeds.expanded:g} expanded"
    ledger.note("expansion.least_reuse", least, MODEL, why)
    launch = 0 if kind == "cpu" else LAUNCH_TOKENS
    why = "such a step runs without a graph, which costs as much as expanding so many tokens"
    ledger.note("expansion.launch_tokens", launch, HARDWARE, why)
    why = f"keys and values of a chunk take {format_size(chunk * widest)}"
    ledger.note("expansion.chunk_tokens", chunk, HARDWARE, why)
    return ExpansionPlan(least_reuse=least, launch_tokens=launch, chunk_tokens=chunk)


def expansion_item(
    plan: ExpansionPlan | None, shard: Shard, kind: str, activations: str, step_tokens: int
) -> MemoryItem:
    """Keys and values of a chunk; float32 sums of the step's tokens, and on a CPU the scores."""
    if plan is None:
        return MemoryItem(name="expansion", bytes=0, note="")
    tp, float32 = shard.parallel.attention_tp, DTYPE_BYTES["float32"]
    sizes = []
    for mixer in _latents(shard):
        heads = mixer.num_heads // tp
        element = float32 if kind == "cpu" else DTYPE_BYTES[activations]
        values, size = _token_values(mixer, tp), 0
        if kind != "cpu":
            # A GPU brings the latents of a chunk together first, and the matrices of all heads.
            values += mixer.kv_rank
            made = heads * (mixer.nope_dim + mixer.value_dim)
            size += made * mixer.kv_rank * element
        size += plan.chunk_tokens * values * element
        rows = step_tokens * heads
        rows += 0 if kind == "cpu" else MORE_ROWS
        size += rows * (mixer.value_dim + SUMS) * float32
        if kind == "cpu":
            size += 2 * step_tokens * heads * plan.chunk_tokens * float32
        sizes.append(size)
    note = f"keys and values of {plan.chunk_tokens} tokens, sums of {step_tokens}"
    return MemoryItem(name="expansion", bytes=max(sizes), note=note)


def _latents(shard: Shard) -> list[LatentAttention]:
    mixers = dict.fromkeys(layer.mixer for layer, _ in shard.config.kinds())
    return [mixer for mixer in mixers if isinstance(mixer, LatentAttention)]


def _token_values(mixer: LatentAttention, tp: int) -> int:
    return mixer.num_heads // tp * (mixer.nope_dim + mixer.value_dim) + mixer.rope_dim


def _least_reuse(mixer: LatentAttention, speeds: Speeds) -> int:
    """Where absorbing is always the better no context has as many queries as this says."""
    widths = mixer.nope_dim + mixer.value_dim
    absorbed = (2 * mixer.kv_rank + mixer.rope_dim) / speeds.absorbed
    saved = absorbed - (widths + mixer.rope_dim) / speeds.expanded
    made = mixer.kv_rank * widths / speeds.made
    return 2**31 if saved <= 0 else math.ceil(made / saved)
