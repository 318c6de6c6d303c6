"""Reference figures of decode steps on one H200, and the deployments that they are of.

python -m tests.resolve.points      prints both tables
"""

from __future__ import annotations

import json

from tests.checkpoint.totals import CARDS
from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.quantization import group_formats
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.plan import LatentAttention, ParallelPlan, WeightFormat
from tokenspeed.resolve.memory import cache_groups
from tokenspeed.resolve.predict import GPU, Ceilings, Predictor
from tokenspeed.resolve.roofline import Decode, Roofline
from tokenspeed.resolve.shard import Formats, Shard

BATCHES = (1, 8, 32, 128)
# Read and written, bytes/s: the ceiling of the reference table.
COPY = 4.3e12
Case = tuple[str, str, str]
# (card, weights, cache) -> context -> milliseconds at batch 1, 8, 32, 128.
FLOORS: dict[Case, dict[int, tuple[float, ...]]] = {
    ("llama-3.1-8b", "bfloat16", "bfloat16"): {
        1_000: (3.52, 3.73, 4.47, 7.39), 50_000: (5.01, 15.7, 52.3, 199)},
    ("llama-3.1-8b", "fp8", "fp8"): {
        1_000: (1.88, 1.99, 2.36, 3.82), 50_000: (2.63, 7.96, 26.3, 99)},
    ("qwen3-30b-a3b", "bfloat16", "bfloat16"): {
        1_000: (1.44, 6.19, 13.1, 17.0), 50_000: (2.56, 15.2, 48.9, 160)},
    ("qwen3-30b-a3b", "fp8", "fp8"): {
        1_000: (0.79, 3.17, 6.61, 8.56), 50_000: (1.35, 7.65, 24.5, 80)},
    ("deepseek-v2-lite", "bfloat16", "bfloat16"): {
        1_000: (1.15, 4.22, 7.15, 8.13), 50_000: (1.50, 7.05, 18.5, 53.5)},
    ("deepseek-v2-lite", "fp8", "fp8"): {
        1_000: (0.62, 2.16, 3.62, 4.12), 50_000: (0.80, 3.58, 9.30, 26.8)},
    ("gpt-oss-20b", "checkpoint", "bfloat16"): {
        1_000: (0.87, 2.17, 3.10, 3.75), 50_000: (1.15, 4.41, 12.1, 39.6)},
    ("moonlight-16b-a3b", "bfloat16", "bfloat16"): {
        1_000: (1.21, 4.28, 7.21, 8.19), 50_000: (1.56, 7.11, 18.6, 53.6)},
    ("qwen3-next-80b-a3b", "fp8", "bfloat16"): {
        1_000: (0.94, 3.50, 10.3, 22.3), 50_000: (1.22, 5.74, 19.2, 58)},
}  # fmt: skip
# Tokens/s per user of a public engine on the same card: (card, weights, cache) -> context -> batch.
MEASURED: dict[Case, dict[int, dict[int, float]]] = {
    ("llama-3.1-8b", "bfloat16", "bfloat16"): {
        1_000: {1: 205, 8: 191, 32: 159, 64: 132, 128: 100},
        16_000: {1: 186, 8: 113, 32: 49},
        50_000: {1: 157, 8: 59, 16: 35}},
    ("deepseek-v2-lite", "bfloat16", "bfloat16"): {
        1_000: {1: 299, 8: 258, 32: 219, 64: 196, 128: 159},
        16_000: {1: 267, 8: 206, 32: 125},
        50_000: {1: 224, 8: 148, 16: 106, 32: 63}},
    ("qwen3-30b-a3b", "bfloat16", "bfloat16"): {1_000: {1: 239, 8: 108, 32: 62, 64: 52}},
    ("qwen3-30b-a3b", "bfloat16", "fp8"): {
        1_000: {1: 230, 8: 106, 32: 63, 64: 53}, 50_000: {1: 189, 8: 62, 16: 39}},
    ("gpt-oss-20b", "checkpoint", "bfloat16"): {
        1_000: {1: 339, 8: 205, 32: 154, 64: 138}, 50_000: {1: 306, 8: 140, 32: 65, 64: 39}},
}  # fmt: skip


def deployment(
    card: str, weights: str, cache: str, parallel: ParallelPlan
) -> tuple[Shard, Formats, Roofline]:
    """`weights` is a format, or "checkpoint"; heads, routers and embeddings stay in bfloat16, and
    an fp8 latent has one scale for all."""
    config_json = json.loads((CARDS / f"{card}.json").read_bytes())["config"]
    config, floats = model_config(config_json), WeightFormat.BFLOAT16
    if weights == "checkpoint":
        formats = Formats.of(floats, floats, "bfloat16")
        stored = {group: WeightFormat(kept) for group, kept in group_formats(config_json).items()}
        formats = Formats(tuple((dict(formats.groups) | stored).items()), "bfloat16")
    else:
        formats = Formats.of(WeightFormat(weights), floats, "bfloat16", head=floats)
    latent = any(isinstance(layer.mixer, LatentAttention) for layer, _ in config.kinds())
    shard = Shard(config, parallel)
    groups = cache_groups(shard, cache, "latent" if latent else "split", 64)
    return shard, formats, Roofline(shard, formats, groups, "bfloat16")


def roofline(
    card: str, weights: str, cache: str, tp: int = 1, parallel: ParallelPlan | None = None
) -> Roofline:
    usual = ParallelPlan(attention_tp=tp, attention_dp=1, world_size=tp, dense_tp=tp, expert_tp=tp)
    return deployment(card, weights, cache, parallel or usual)[2]


def floor_ms(line: Roofline, batch: int, context: int) -> float:
    """What such a step reads, at `COPY`."""
    step = Decode(batch, context)
    return 1e3 * (sum(line.weight_bytes(step).values()) + line.cache_bytes(step)) / COPY


def h200() -> Ceilings:
    (gpu,) = load_hardware("nvidia-h200").gpus
    found = {entry.what: entry.value for entry in gpu.ceilings}
    products = {what: found[what] for what in ("bfloat16", "fp8")}
    return Ceilings(found["read"], products, found["link"], frozenset(gpu.capabilities))


def predictor(card: str, weights: str, cache: str) -> Predictor:
    one = ParallelPlan(attention_tp=1, attention_dp=1, world_size=1)
    shard, formats, line = deployment(card, weights, cache, one)
    return Predictor(line, formats, h200(), shard, GPU)


def main() -> None:
    print("floors at 4.3 TB/s, ms: ours / reference (difference)")
    for case, contexts in FLOORS.items():
        for context, row in contexts.items():
            line = roofline(*case)
            pairs = [
                (floor_ms(line, batch, context), theirs)
                for batch, theirs in zip(BATCHES, row, strict=True)
            ]
            cells = (f"{a:.2f} / {b:g} ({100 * (a / b - 1):+.1f} %)" for a, b in pairs)
            print(f"{'/'.join(case):38} {context:6} ", "  ".join(cells))
    print("\ntokens/s per user: measured, and our band")
    for case, points in MEASURED.items():
        ours = predictor(*case)
        for context, measured in points.items():
            for batch, rate in measured.items():
                slow, expected, fast = (
                    1 / ours.seconds(Decode(batch, context), which)
                    for which in ("slow", "expected", "fast")
                )
                print(
                    f"{'/'.join(case):38} {context:6} x {batch:<4} {rate:5g}   "
                    f"{slow:5.0f} .. {expected:5.0f} .. {fast:5.0f}"
                )


if __name__ == "__main__":
    main()
