"""What `up` is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenspeed.appliance.early import EarlyWorker
from tokenspeed.errors import Problem, ResolveError, TokenspeedError
from tokenspeed.plan import Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What `up` was asked for. `log_draft` is where this process's output goes when detached: it
    becomes the log once the name is claimed. `overrides` are the texts of --set, which `status`
    needs to make the plan again; `wishes` are the recipe's values by dotted key. `early` is a
    worker that waits for this order."""

    plan: Plan
    recipe: Path
    offline: bool
    log_draft: Path | None
    overrides: tuple[str, ...] = ()
    wishes: Mapping[str, Any] = field(default_factory=dict)
    early: EarlyWorker | None = None


def refuse_unmet(plan: Plan) -> None:
    """Raises ResolveError when the plan needs what this build or machine has not got."""
    if plan.unmet:
        raise ResolveError(
            *(
                Problem(
                    code="TS-S200",
                    message=f"this plan cannot run here: it needs {unmet.need}: {unmet.detail}",
                    hint="`tokenspeed plan` shows the whole plan",
                )
                for unmet in plan.unmet
            )
        )


def made(order: Callable[[], Order]) -> Order:
    """The order that is made beside one that serves, of files that anybody may be changing. What
    goes wrong with it, also by our own fault, ends the new one alone: raises TokenspeedError."""
    try:
        return order()
    except TokenspeedError:
        raise
    except Exception as error:
        log.exception("a bug in tokenspeed, or no memory, kept a recipe from being planned")
        raise ResolveError(
            Problem(
                code="TS-S257",
                message=f"the recipe cannot be planned: {type(error).__name__}: {error}",
                hint="a bug in tokenspeed, or no memory; please report it with the log",
            )
        ) from error
