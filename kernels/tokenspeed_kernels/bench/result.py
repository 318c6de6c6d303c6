"""One line of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """`us` microseconds of one call, `rate` in `unit` (GB/s, TFLOP/s, ...). `floor_us` is the time
    at the device's ceiling and `fraction` = floor / time, both None where no floor is known."""

    op: str
    kernel: str
    case: str
    us: float
    rate: float
    unit: str
    floor_us: float | None = None
    fraction: float | None = None

    def __str__(self) -> str:
        line = f"{self.op:15} {self.case:32} {self.us:10.1f} us"
        floor = " " * 24
        if self.floor_us is not None and self.fraction is not None:
            floor = f"floor {self.floor_us:10.1f} us {self.fraction:4.0%}"
        return f"{line}  {floor}  {self.rate:9.1f} {self.unit:8} {self.kernel}"


def memory(op: str, kernel: str, case: str, us: float, size: int, ceiling: float) -> Result:
    """A result whose limit is moving `size` bytes at `ceiling` GB/s."""
    floor = size / ceiling / 1e3
    return Result(op, kernel, case, us, size / us / 1e3, "GB/s", floor, floor / us)


def arithmetic(op: str, kernel: str, case: str, us: float, flops: float, ceiling: float) -> Result:
    """A result whose limit is `flops` operations at `ceiling` TFLOP/s."""
    floor = flops / ceiling / 1e6
    return Result(op, kernel, case, us, flops / us / 1e6, "TFLOP/s", floor, floor / us)
