"""Where the model runs: the device, its threads, and the groups of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed_kernels.spec import Device

from tokenspeed.errors import ResolveError
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import DevicePlan, ModelConfig, ParallelPlan
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.facts import BuildFacts
from tokenspeed.resolve.ledger import DEFAULT, HARDWARE, RECIPE, Ledger


@dataclass(frozen=True, slots=True)
class Target:
    """The device that one rank computes on. `available` of them are there."""

    kind: str
    name: str
    memory_bytes: int
    available: int
    kernels: Device


def settle_target(recipe: Recipe, hardware: Hardware, ledger: Ledger) -> Target:
    """Raises ResolveError when the recipe asks for a GPU and there is none: without a device
    nothing else can be decided."""
    found = "cuda" if hardware.gpus else "cpu"
    seen = f"{hardware.gpus[0].count} x {hardware.gpus[0].name}" if hardware.gpus else "no GPU"
    kind = ledger.settle(
        "device.kind", recipe.device, found, HARDWARE, f"the machine has {seen}", "device"
    )
    if kind == "cpu":
        cpu = hardware.cpu
        features = Device("cpu", cpu.arch, frozenset(cpu.features))
        return Target("cpu", cpu.model, hardware.memory_bytes, 1, features)
    if not hardware.gpus:
        ledger.fail(
            "TS-H010",
            "device",
            f"the recipe asks for a GPU, {hardware.name} has none"
            + "".join(f" ({note})" for note in hardware.notes),
            "write device: cpu, or plan for another machine: --hardware nvidia-h200",
        )
        raise ResolveError(*ledger.failures)
    gpu = hardware.gpus[0]
    return Target("cuda", gpu.name, gpu.memory_bytes, gpu.count, Device("cuda", gpu.arch))


def settle_parallel(
    recipe: Recipe, config: ModelConfig, target: Target, build: BuildFacts, ledger: Ledger
) -> ParallelPlan:
    """The groups. What this build or machine has too few ranks for is an unmet need."""
    groups = recipe.parallel.attention
    tp = ledger.settle(
        "parallel.attention_tp",
        groups.tp if groups else None,
        1,
        DEFAULT,
        "one rank holds a replica until the recipe spreads it",
        "parallel.attention.tp",
    )
    dp = ledger.settle(
        "parallel.attention_dp",
        groups.dp if groups else None,
        1,
        DEFAULT,
        "one replica",
        "parallel.attention.dp",
    )
    world = tp * dp
    _settle_feed_forward(recipe, ledger)
    _require_even(config, tp, ledger)
    if world > build.max_ranks:
        ledger.need(
            "parallel groups",
            f"tp {tp} x dp {dp} are {world} ranks; this build runs {build.max_ranks}",
        )
    if world > target.available:
        ledger.need("devices", f"{world} x {target.name}; the machine has {target.available}")
    return ParallelPlan(attention_tp=tp, attention_dp=dp, world_size=world)


def _settle_feed_forward(recipe: Recipe, ledger: Ledger) -> None:
    """Groups of their own for the feed-forward layers are planned, not yet run."""
    dense, experts = recipe.parallel.dense, recipe.parallel.experts
    asked = {
        "parallel.dense.tp": dense.tp if dense else None,
        "parallel.experts.tp": experts.tp if experts else None,
        "parallel.experts.ep": experts.ep if experts else None,
    }
    for key, ranks in asked.items():
        if ranks is not None:
            ledger.note(key, ranks, RECIPE, "as the recipe says", key)
            ledger.need(key, "this build spreads the feed-forward layers as it does attention")


def _require_even(config: ModelConfig, tp: int, ledger: Ledger) -> None:
    if not _even(config, tp):
        fits = [n for n in range(1, config.num_heads + 1) if _even(config, n)]
        ledger.fail(
            "TS-R022",
            "parallel.attention.tp",
            f"{config.num_heads} query heads, {config.num_kv_heads} kv heads and an inner width of "
            f"{config.intermediate_size} do not split over {tp} ranks",
            f"write one of {', '.join(map(str, fits))}",
        )


def _even(config: ModelConfig, tp: int) -> bool:
    kv = config.num_kv_heads
    return not (config.num_heads % tp or config.intermediate_size % tp or (kv % tp and tp % kv))


def settle_device(
    recipe: Recipe,
    hardware: Hardware,
    target: Target,
    activations: str,
    world_size: int,
    ledger: Ledger,
) -> DevicePlan:
    threads = 0
    if target.kind == "cpu":
        threads = ledger.settle(
            "device.threads",
            recipe.limits.threads,
            1,
            DEFAULT,
            "one compute thread per worker: the front and the worker share the cores, and threads "
            "that spin for work slow both",
            "limits.threads",
        )
        cores = hardware.cpu.cores
        if threads > cores:
            ledger.fail(
                "TS-H011",
                "limits.threads",
                f"{threads} threads on {cores} cores would wait for each other at every operator",
                f"write at most {cores}",
            )
    elif ledger.asks("limits.threads"):
        ledger.note(
            "device.threads", 0, HARDWARE, "limits.threads is for CPUs; a GPU computes here",
            "limits.threads",
        )  # fmt: skip
    else:
        ledger.note("device.threads", 0, HARDWARE, "a GPU computes")
    return DevicePlan(
        kind=target.kind,
        name=target.name,
        count=world_size,
        threads=threads,
        activations=activations,
    )


def settle_activations(recipe: Recipe, target: Target, ledger: Ledger) -> str:
    on_cpu = target.kind == "cpu"
    return ledger.settle(
        "device.activations",
        recipe.quantization.activations,
        "float32" if on_cpu else "bfloat16",
        HARDWARE,
        "exact, and CPU vector units take it as it is" if on_cpu else "the tensor cores' type",
        "quantization.activations",
    )
