"""Where the model runs: the device and its threads."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed_kernels.spec import Device

from tokenspeed.hardware.types import Ceiling, Hardware
from tokenspeed.plan import DevicePlan
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.ledger import DEFAULT, HARDWARE, Ledger


@dataclass(frozen=True, slots=True)
class Target:
    """The device that one rank computes on. `available` of them are there; `ceilings` are what
    is known of its speed."""

    kind: str
    name: str
    memory_bytes: int
    available: int
    kernels: Device
    ceilings: tuple[Ceiling, ...]
    cores: int = 0


# A shipped profile of each kind, for the way out.
_EXAMPLES = {"cuda": "nvidia-h200", "rocm": "amd-mi355x-x8"}


def settle_target(recipe: Recipe, hardware: Hardware, ledger: Ledger) -> Target | None:
    """None when the recipe asks for a GPU and there is none: without a device nothing else can be
    decided."""
    found = device_kind(hardware)
    seen = f"{hardware.gpus[0].count} x {hardware.gpus[0].name}" if hardware.gpus else "no GPU"
    kind = ledger.settle(
        "device.kind", recipe.device, found, HARDWARE, f"the machine has {seen}", "device"
    )
    if kind == "cpu":
        cpu, device = hardware.cpu, kernel_device(hardware, "cpu")
        return Target("cpu", cpu.model, hardware.memory_bytes, 1, device, cpu.ceilings, cpu.cores)
    if not hardware.gpus or kind != found:
        ledger.fail(
            "TS-H010",
            "device",
            f"the recipe asks for a GPU of kind {kind}, {hardware.name} has {seen}"
            + "".join(f" ({note})" for note in hardware.notes),
            f"write device: cpu, or plan for another machine: --hardware {_EXAMPLES[kind]}",
        )
        return None
    gpu = hardware.gpus[0]
    device = kernel_device(hardware, kind)
    return Target(kind, gpu.name, gpu.memory_bytes, gpu.count, device, gpu.ceilings)


def kernel_device(hardware: Hardware, kind: str) -> Device:
    """The device of that kind as kernels see it."""
    if kind == "cpu":
        return Device("cpu", hardware.cpu.arch, frozenset(hardware.cpu.features))
    gpu = hardware.gpus[0]
    return Device(kind, gpu.arch, frozenset(gpu.capabilities))


def device_kind(hardware: Hardware) -> str:
    """What there is to compute on: "rocm" for AMD's GPUs, "cuda" for others, "cpu" without any."""
    if not hardware.gpus:
        return "cpu"
    return "rocm" if hardware.gpus[0].arch.startswith("gfx") else "cuda"


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
            "one: more compute threads would compete with the HTTP process for the cores",
            "limits.threads",
        )
        cores = hardware.cpu.cores
        if threads > cores:
            ledger.fail(
                "TS-H011",
                "limits.threads",
                f"{threads} threads on {cores} cores would wait for one another in every op",
                f"write at most {cores}",
            )
    elif ledger.asks("limits.threads"):
        ledger.note(
            "device.threads", 0, HARDWARE, "limits.threads is for CPUs; this plan runs on a GPU",
            "limits.threads",
        )  # fmt: skip
    else:
        ledger.note("device.threads", 0, HARDWARE, "for CPUs only")
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
        "exact, and native to CPU vector units" if on_cpu else "the tensor cores' type",
        "quantization.activations",
    )
