"""A budget that the items without the cache fill: what is the cause, and what could help.

Only what could help is named: limits where the least that they can be would fit, the budget where
the device has more, a device by the memory that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tokenspeed.plan import MemoryItem
from tokenspeed.resolve.ledger import Ledger

GIB = 2**30
CODE = "TS-M001"
_RUNNING, _STEP, _CONTEXT = "limits.max_running", "limits.max_step_tokens", "model.max_context"
# Which key an item's size follows, beside the weights.
_CAUSES = {
    "activations": _STEP,
    "communication": _STEP,
    "logits": _RUNNING,
    "sampling state": _RUNNING,
    "window cache": _RUNNING,
    "recurrent state": _RUNNING,
    "rope table": _CONTEXT,
    "graphs": "graphs.batch_sizes",
    "draft weights": "speculation.method",
    "further fronts": "serve.fronts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the items beside the weights grow with, in requests and tokens. `least_step` is the
    shortest step that is allowed for one request."""

    context: int
    running: int
    step_tokens: int
    least_step: int


# Everything but the cache and the headroom, for these sizes.
FixedItems = Callable[[Sizes], tuple[MemoryItem, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Bytes of a rank. `cache_bytes` are the least that the cache has to hold, `own_budget` says
    that the recipe fixed the budget, and `device_bytes_for` gives the device that such items and
    such a cache need."""

    budget: int
    device_bytes: int
    own_budget: bool
    cache_bytes: int
    sizes: Sizes
    fixed: FixedItems
    device_bytes_for: Callable[[int], int]

    def needed(self, sizes: Sizes) -> int:
        return _total(self.fixed(sizes)) + self.cache_bytes

    def fail(self, ledger: Ledger) -> None:
        items = sorted(self.fixed(self.sizes), key=lambda item: -item.bytes)
        shown = [(item.name, gibibytes(item.bytes)) for item in items]
        listed = ", ".join(f"{name} {size}" for name, size in shown if size != "0.00GiB")
        limits = self._limits()
        ledger.fail(
            CODE,
            self._cause(bool(limits), ledger),
            f"{listed}: no room for a cache within {gibibytes(self.budget)}",
            self._hint(limits),
        )

    def _lowered(self) -> Iterator[tuple[tuple[str, ...], Sizes]]:
        """The limits as low as they go: each alone, then both."""
        now = self.sizes
        fewer = replace(now, running=1)
        yield (_RUNNING,), fewer
        # Every running request has a token of its own in each step.
        yield (_STEP,), replace(now, step_tokens=max(now.running, now.least_step))
        yield (_RUNNING, _STEP), replace(fewer, step_tokens=now.least_step)

    def _limits(self) -> str:
        """The limits that can be lowered far enough, "" where none can."""
        enough = [keys for keys, sizes in self._lowered() if self.needed(sizes) <= self.budget]
        alone = [keys[0] for keys in enough if len(keys) == 1]
        return " or ".join(alone) if alone else " and ".join(enough[0]) if enough else ""

    def _hint(self, limits: str) -> str:
        needed = self.needed(self.sizes)
        missing = f"{gibibytes(needed - self.budget, up=True)} are missing"
        if limits:
            ways = [f"lower {limits}"]
        else:
            missing, ways = f"{missing}, and no lower limit frees that much", []
        if needed <= self.device_bytes:
            ways.append(f"write limits.memory: {self._spelt(needed)} or more")
        else:
            with_budget = f" and write limits.memory: {gibibytes(needed, up=True)}"
            ways.append(
                f"take a device with at least {gibibytes(self.device_bytes_for(needed), up=True)}"
                + (with_budget if self.own_budget else "")
            )
        return f"{missing}: {', or '.join(ways)}"

    def _spelt(self, needed: int) -> str:
        """No more than the device has, which two decimals could be."""
        rounded = -(-needed * 100 // GIB) * GIB // 100
        if rounded <= self.device_bytes:
            return gibibytes(needed, up=True)
        return f"{needed}B"

    def _cause(self, by_limits: bool, ledger: Ledger) -> str:
        """The key to point at: a budget that the recipe itself made too small; else what the item
        that would shrink most follows; else what the largest follows."""
        if self.own_budget and self.needed(self.sizes) <= self.device_bytes:
            return "limits.memory"
        items = {item.name: item.bytes for item in self.fixed(self.sizes)}
        if by_limits:
            *_, (_, least) = self._lowered()
            for item in self.fixed(least):
                items[item.name] -= item.bytes
        largest = max(items, key=lambda name: items[name])
        if largest == "weights":
            written = "quantization.weights"
            return written if ledger.asks(written) else "model.source"
        return _CAUSES.get(largest, "limits.memory")


def gibibytes(count: int, up: bool = False) -> str:
    """Bytes in GiB with two decimals, to the nearest (or up)."""
    return f"{-(-count * 100 // GIB) / 100:.2f}GiB" if up else f"{count / GIB:.2f}GiB"


def _total(items: tuple[MemoryItem, ...]) -> int:
    return sum(item.bytes for item in items)
