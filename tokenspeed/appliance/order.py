"""What `up` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenspeed.errors import Problem, ResolveError
from tokenspeed.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What `up` was asked for. `log_draft` is where this process's output goes when detached: it
    becomes the log once the name is claimed. `overrides` are the texts of --set, which `status`
    needs to make the plan again; `wishes` are the recipe's values by dotted key."""

    plan: Plan
    recipe: Path
    offline: bool
    log_draft: Path | None
    overrides: tuple[str, ...] = ()
    wishes: Mapping[str, Any] = field(default_factory=dict)


def refuse_unmet(plan: Plan) -> None:
    """Raises ResolveError when the plan needs what this build or machine has not got."""
    if plan.unmet:
        raise ResolveError(
            *(
                Problem(
                    code="TS-S200",
                    message=f"this plan cannot run here: it needs {unmet.need}: {unmet.detail}",
                    hint="`tokenspeed plan` shows the whole of it",
                )
                for unmet in plan.unmet
            )
        )
