"""How a fetch tells what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenspeed.appliance.download import OnBytes


@dataclass(frozen=True, slots=True)
class Watch:
    """How a fetch tells what it does: `stage` gets a line for people, `on_bytes` the bytes done
    and in all (0: not known). `wanted` is called a few times a second and may raise to give up;
    what was downloaded stays for the next try.
    """

    stage: Callable[[str], None] = lambda text: None
    on_bytes: OnBytes = lambda done, total: None
    wanted: Callable[[], None] = lambda: None
