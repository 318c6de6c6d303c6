"""What the front knows about its worker, and how it says that no work can be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tokenspeed.wire import Capacity


@dataclass(frozen=True, slots=True)
class Loading:
    """The worker was started but cannot compute yet. `fraction` is of this stage, 0 to 1, and
    `detail` for people."""

    stage: str
    fraction: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker computes; `capacity` is what it measured that it holds, `stages` the seconds of
    each stage of its start."""

    capacity: Capacity
    stages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Down:
    """There is no worker. `why` is for people who run the server, not for its clients."""

    why: str


State: TypeAlias = Loading | Ready | Down


class EngineUnavailable(Exception):  # noqa: N818 - it names a state, not a mistake
    """The engine takes no request now. The same request may be taken later."""

    def __init__(self, reason: Literal["loading", "draining", "down", "stalled"], detail: str):
        super().__init__(f"the engine is {reason}: {detail}")
        self.reason = reason
        self.detail = detail
