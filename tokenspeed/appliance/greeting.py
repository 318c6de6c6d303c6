"""What people read once an instance answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenspeed.appliance.warmup import Answer, Probe
from tokenspeed.plan import Plan
from tokenspeed.stages import in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The seconds from the start of the process to the first answer; to the start of its worker,
    what was fetched included; and of each stage of the worker."""

    seconds: float
    planned: float
    worker: Mapping[str, float]

    def in_words(self, answered: float) -> str:
        """`answered`: how long the question took."""
        parts = {"planning": self.planned, **self.worker, "an answer": answered}
        return in_words({**parts, "the rest": self.seconds - sum(parts.values())})


def greeting(
    plan: Plan, url: str, start: Start, probe: Probe, answer: Answer, *, keyed: bool
) -> str:
    """`keyed`: requests need a key."""
    noise = "  (random weights: the answer is noise)" if plan.model.load == "dummy" else ""
    return (
        f"\n{plan.name} is ready at {url}  ({start.seconds:.1f} s)\n\n"
        f"  asked     {probe.question}\n"
        f"  answered  {answer.text}{noise}\n"
        f"            {answer.tokens} tokens in {answer.seconds:.2f} s\n"
        f"  the start {start.in_words(answer.seconds)}\n\n"
        f"{probe.curl(url, keyed)}\n"
    )
