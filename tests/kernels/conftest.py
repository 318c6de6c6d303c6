"""Implementations of an op beside its reference, and random inputs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import Device


def this_cpu() -> Device:
    """The machine that the tests run on."""
    features: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            features.update(line.partition(":")[2].split())
            break
    return Device("cpu", platform.machine(), frozenset(features))


def cpu_kernels(op: str, **facts: str) -> list[str]:
    """Names of the kernels of `op` that this machine runs and that take `facts`, without the
    reference."""
    device = this_cpu()
    return [
        spec.name
        for spec in registry.specs(op)
        if not spec.is_reference
        and spec.device.miss(device) is None
        and all(spec.requires[field].holds(value) for field, value in facts.items())
    ]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "op(name, **facts): runs once per kernel of this op")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `kernel` and the marker op("x") runs once per kernel of op x; facts given with
    the marker narrow that down."""
    marker = metafunc.definition.get_closest_marker("op")
    if "kernel" not in metafunc.fixturenames or marker is None:
        return
    names = cpu_kernels(*marker.args, **marker.kwargs)
    metafunc.parametrize("kernel", [registry.load(name) for name in names], ids=names)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh float memory holds nan, so an output element that was not written shows."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, _poison(getattr(torch, name)))


def _poison(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def poisoned_allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(-(2**30))

    return poisoned_allocate
