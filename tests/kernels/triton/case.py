"""A kernel to compile, and for what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}


@dataclass
class Case:
    """A kernel with its constants. `types` in the order of the arguments that are not constant;
    pointers and those marked "!" are multiples of 16."""

    name: str
    kernel: Any
    types: str
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)
    targets: tuple[str, ...] = tuple(TARGETS)
