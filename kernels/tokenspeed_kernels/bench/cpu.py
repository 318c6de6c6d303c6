"""CPU kernels at the shapes of a 135M model (hidden 576, 30 layers), one thread."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tokenspeed_kernels import _cpu, registry
from tokenspeed_kernels.bench.result import Result
from tokenspeed_kernels.spec import Device, Fact
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight

LAYER = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
HEAD = (49152, 576)
LAYERS = 30
ROWS = (1, 8, 64, 1024)
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
# What its attention and its rope need, but for the dtype of the cache.
ATTENTION: dict[str, Fact] = {
    "activations": "float32", "head_dim": HEAD_DIM, "block_size": BLOCK_SIZE, "window": 0,
    "sinks": False,
}  # fmt: skip
ROPE: dict[str, Fact] = {
    "activations": "float32", "head_dim": HEAD_DIM, "qk_norm": False, "qk_norm_over": "head",
}  # fmt: skip
ROTATED_BYTES = 100 << 20
SAMPLE_S = 0.05  # of CPU time, each of REPEATS samples
REPEATS = 7


def this_cpu() -> tuple[str, Device]:
    """The CPU's name and its Device."""
    info: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
    features = frozenset((info.get("flags") or info.get("Features", "")).split())
    return info.get("model name", "cpu"), Device("cpu", platform.machine(), features)


def seconds(
    call: Callable[[int], object], summary: Callable[[list[float]], float] = statistics.median
) -> float:
    """CPU seconds of `call(i)`, i counting up: the median of REPEATS samples, or `summary`."""
    count, index = 1, 0
    while True:  # how many calls make one sample
        begin = time.thread_time()
        for _ in range(count):
            call(index)
            index += 1
        if (spent := time.thread_time() - begin) >= SAMPLE_S / 4:
            break
        count *= 2
    count = max(1, round(count * SAMPLE_S / spent))
    samples = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        for _ in range(count):
            call(index)
            index += 1
        samples.append((time.thread_time() - begin) / count)
    return summary(samples)


def seconds_of(kernel: Callable[..., object], *arguments: object) -> float:
    """CPU seconds of a call with always the same arguments."""
    return seconds(lambda _: kernel(*arguments))


def in_turn(kernels: list[Any], x: torch.Tensor) -> Callable[[int], object]:
    """Each call goes to the next kernel, whose weight no cache has."""
    return lambda i: kernels[i % len(kernels)](x)


def best_isa() -> int:
    isas = (_cpu.AVX512_VNNI, _cpu.AVX512, _cpu.AVX2, _cpu.PORTABLE)
    return next(isa for isa in isas if _cpu.supports(isa))


def ceilings() -> tuple[float, float | None]:
    """Bytes read a second and int8 operations a second (None without VNNI) of one core: the best
    samples, for what was reached once is possible."""
    isa = best_isa()
    buffer = _cpu.Buffer(ROTATED_BYTES)
    bandwidth = ROTATED_BYTES / seconds(lambda _: buffer.read(isa), min)
    rounds = 100_000
    operations = _cpu.dot_rounds(isa, rounds)
    if operations == 0:
        return bandwidth, None
    return bandwidth, operations / seconds(lambda _: _cpu.dot_rounds(isa, rounds), min)


def random_weight(weight_format: str, rows: int, columns: int) -> RawWeight:
    blocks = columns // 32
    data = torch.randint(0, 256, (rows, blocks, BLOCK_BYTES[weight_format]), dtype=torch.uint8)
    data[..., 0:4] = torch.full((rows, blocks, 2), 0.01).half().view(torch.uint8)
    return RawWeight(weight_format, (rows, columns), data.flatten(1))


def bench_linear(device: Device) -> Iterator[Result]:
    """The ceilings of one core, and the products of a layer and of the head."""
    bandwidth, operations = ceilings()
    yield Result("ceiling", "", "read, one core", 0.0, bandwidth / 1e9, "GB/s")
    if operations is not None:
        yield Result("ceiling", "", "int8 dot products, one core", 0.0, operations / 1e9, "GOP/s")
    products = [(name, "q4_1", shape) for name, shape in LAYER.items()]
    for name, weight_format, (out, columns) in [*products, ("lm_head", "q8_0", HEAD)]:
        need: dict[str, Fact] = {
            "weight_format": weight_format,
            "activations": "float32",
            "in_features": columns,
        }
        spec = registry.find("linear", need, device).spec
        weight = random_weight(weight_format, out, columns)
        copies = -(-ROTATED_BYTES // weight.data.numel())
        kernels = [registry.load(spec.name)(weight, None) for _ in range(copies)]
        for rows in ROWS:
            x = torch.randn(rows, columns)
            spent = seconds(in_turn(kernels, x))
            work = 2.0 * out * columns * rows
            floor = weight.data.numel() / bandwidth
            if operations is not None:
                # Activations of 16 bits are two int8 each.
                floor = max(floor, 2 * work / operations)
            few = rows == 1
            yield Result(
                "linear",
                spec.name,
                f"{name} {weight_format} {out}x{columns} M={rows}",
                spent * 1e6,
                (weight.data.numel() if few else work) / spent / 1e9,
                "GB/s" if few else "GOP/s",
                floor * 1e6,
                floor / spent,
            )


def attention_step(rows: list[tuple[int, int]], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """What `op.PagedAttention` takes before the scale, for `rows` of (new, cached) tokens."""
    used = [-(-(query + context) // BLOCK_SIZE) for query, context in rows]
    shape = (sum(used) + 1, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    blocks = torch.split((torch.randperm(sum(used)) + 1).int(), used)
    tables = torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True)
    lens = torch.tensor([0, *(query for query, _ in rows)])
    return (
        torch.randn(int(lens.sum()), HEADS, HEAD_DIM),
        torch.randn(shape).to(dtype),
        torch.randn(shape).to(dtype),
        tables,
        lens.cumsum(0).int(),
        torch.tensor([context for _, context in rows], dtype=torch.int32),
    )


def bench_attention(device: Device) -> Iterator[Result]:
    """Attention of one layer, by rows and by dtype of the cache."""
    cases = {
        "decode 1 x 128": [(1, 128)],
        "decode 1 x 1024": [(1, 1024)],
        "decode 8 x 128": [(1, 128)] * 8,
        "extend 64 on 1024": [(64, 1024)],
        "prefill 1024": [(1024, 0)],
    }
    for name in ("float32", "bfloat16"):
        spec = registry.find("paged_attention", ATTENTION | {"kv_dtype": name}, device).spec
        kernel = registry.load(spec.name)
        for case, rows in cases.items():
            step = attention_step(rows, getattr(torch, name))
            spent = seconds_of(kernel, *step, 0.125)
            pairs = sum(query * context + query * (query + 1) / 2 for query, context in rows)
            rate = 4 * HEAD_DIM * HEADS * pairs / spent / 1e9
            yield Result(
                "paged_attention", spec.name, f"{case} kv {name}", spent * 1e6, rate, "GFLOP/s"
            )


def bench_layer(device: Device) -> Iterator[Result]:
    """What a layer does between its products."""
    weight = torch.randn(576)
    for rows in ROWS:
        x, residual, gates = torch.randn(rows, 576), torch.zeros(rows, 576), torch.randn(rows, 3072)
        calls: dict[str, tuple[object, ...]] = {
            "rms_norm": (x, weight, 1e-5),
            "add_rms_norm": (x, residual, weight, 1e-5),
            "silu_mul": (gates,),
        }
        for op, arguments in calls.items():
            spec = registry.find(op, {"activations": "float32"}, device).spec
            kernel = registry.load(spec.name)
            spent = seconds_of(kernel, *arguments)
            yield Result(op, spec.name, f"M={rows}", spent * 1e6, rows / spent / 1e6, "Mrow/s")
        yield bench_rope(device, rows)


def bench_rope(device: Device, rows: int) -> Result:
    spec = registry.find("rope_kv_write", ROPE | {"kv_dtype": "float32"}, device).spec
    kernel = registry.load(spec.name)
    caches = [torch.zeros(rows // BLOCK_SIZE + 1, BLOCK_SIZE, KV_HEADS, HEAD_DIM) for _ in "kv"]
    arguments = (
        torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
        HEADS,
        KV_HEADS,
        torch.arange(rows, dtype=torch.int32),
        torch.randn(rows, HEAD_DIM),
        torch.arange(rows),
        *caches,
        None,
        None,
        1e-5,
    )
    spent = seconds_of(kernel, *arguments)
    return Result(
        "rope_kv_write", spec.name, f"M={rows}", spent * 1e6, rows / spent / 1e6, "Mrow/s"
    )


def bench_sampling(device: Device) -> Iterator[Result]:
    """The draw, by its parameters."""
    cases = {
        "greedy": (0.0, 0, 1.0, 0.0),
        "temperature 1": (1.0, 0, 1.0, 0.0),
        "top-k 40": (1.0, 40, 1.0, 0.0),
        "top-p 0.9": (1.0, 0, 0.9, 0.0),
        "top-k 40, top-p 0.95, min-p 0.05": (0.7, 40, 0.95, 0.05),
    }
    spec = registry.find("sample", {}, device).spec
    kernel = registry.load(spec.name)
    for rows in (1, 8):
        # Logits as peaked as a language model's: a few likely tokens over a wide tail.
        logits = torch.randn(rows, HEAD[0]) * 2
        logits[:, :50] += torch.linspace(16, 4, 50)
        for case, (temperature, top_k, top_p, min_p) in cases.items():
            arguments = (
                logits,
                torch.full((rows,), temperature),
                torch.full((rows,), top_k, dtype=torch.int32),
                torch.full((rows,), top_p),
                torch.full((rows,), min_p),
                torch.arange(rows),
                torch.arange(rows),
            )
            spent = seconds_of(kernel, *arguments)
            yield Result(
                "sample", spec.name, f"{case} B={rows}", spent * 1e6, rows / spent / 1e3, "krow/s"
            )


class Step:
    """All kernels of one forward step and greedy sampling, as a model of LAYERS layers calls
    them, every layer with its own weights and cache. `rows` are (query_len, context_len)."""

    def __init__(self, device: Device, rows: list[tuple[int, int]]) -> None:
        def load(op: str, **need: Fact) -> Callable[..., Any]:
            return registry.load(registry.find(op, need, device).spec.name)

        self.rms_norm = load("rms_norm", activations="float32")
        self.add_rms_norm = load("add_rms_norm", activations="float32")
        self.silu_mul = load("silu_mul", activations="float32")
        self.rope = load("rope_kv_write", **ROPE, kv_dtype="bfloat16")
        self.attention = load("paged_attention", **ATTENTION, kv_dtype="bfloat16")
        self.sample = load("sample")
        linear = {
            weight_format: load(
                "linear", weight_format=weight_format, activations="float32", in_features=576
            )
            for weight_format in ("q4_1", "q8_0")
        }
        self.layers = [
            [linear["q4_1"](random_weight("q4_1", *shape), None) for shape in LAYER.values()]
            for _ in range(LAYERS)
        ]
        self.head = linear["q8_0"](random_weight("q8_0", *HEAD), None)
        self.q, *_, self.tables, self.cu_query_lens, self.context_lens = attention_step(
            rows, torch.bfloat16
        )
        shape = (int(self.tables.max()) + 1, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        # Written, not zeros: untouched zeros are all one page of the system's.
        self.caches = [
            [torch.full(shape, 0.5, dtype=torch.bfloat16) for _ in "kv"] for _ in range(LAYERS)
        ]
        places = [
            (row, context + i) for row, (query, context) in enumerate(rows) for i in range(query)
        ]
        self.positions = torch.tensor([place for _, place in places], dtype=torch.int32)
        self.slots = torch.tensor(
            [int(self.tables[r, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for r, p in places]
        )
        self.cos_sin = torch.randn(int(self.positions.max()) + 1, HEAD_DIM)
        self.norm = torch.ones(576)
        count = len(rows)
        self.sampling = (
            torch.zeros(count),
            torch.zeros(count, dtype=torch.int32),
            torch.ones(count),
            torch.zeros(count),
            torch.zeros(count, dtype=torch.int64),
            torch.zeros(count, dtype=torch.int64),
        )
        self.hidden = torch.randn(len(places), 576)
        self.last = (self.cu_query_lens[1:] - 1).long()

    def __call__(self) -> object:
        residual = self.hidden.clone()
        x = self.rms_norm(residual, self.norm, 1e-5)
        for (qkv, o, gate_up, down), (k_cache, v_cache) in zip(
            self.layers, self.caches, strict=True
        ):
            q = self.rope(
                qkv(x), HEADS, KV_HEADS, self.positions, self.cos_sin, self.slots,
                k_cache, v_cache, None, None, 1e-5,
            )  # fmt: skip
            mixed = self.attention(
                q, k_cache, v_cache, self.tables, self.cu_query_lens, self.context_lens, 0.125
            )
            x = self.add_rms_norm(o(mixed.flatten(1)), residual, self.norm, 1e-5)
            x = self.add_rms_norm(down(self.silu_mul(gate_up(x))), residual, self.norm, 1e-5)
        return self.sample(self.head(x[self.last]), *self.sampling).tokens


def bench_step(device: Device) -> Iterator[Result]:
    """Whole steps, see `Step`."""
    cases = {
        "decode 1 x 128": [(1, 128)],
        "decode 8 x 128": [(1, 128)] * 8,
        "decode 64 x 128": [(1, 128)] * 64,
        "prefill 1024 in one step": [(1024, 0)],
    }
    for case, rows in cases.items():
        step = Step(device, rows)
        spent = seconds_of(step)
        tokens = len(step.positions)
        yield Result("step", "", case, spent * 1e6, tokens / spent, "tok/s")


BENCHES = {
    "step": bench_step,
    "linear": bench_linear,
    "attention": bench_attention,
    "layer": bench_layer,
    "sampling": bench_sampling,
}


def run(part: str) -> Iterator[Result]:
    """The results of one of BENCHES, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield from BENCHES[part](this_cpu()[1])
