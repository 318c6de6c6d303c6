"""The record of a resolution: what was decided, from where and why, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, cast

from tokenspeed.errors import Problem, Where
from tokenspeed.plan import Unmet
from tokenspeed.recipe.kinds import AUTO

RECIPE, MODEL, HARDWARE, DEFAULT = "recipe", "model", "hardware", "default"

Value: TypeAlias = str | int | float | bool | tuple[str, ...] | None
Chosen = TypeVar("Chosen", bound=Value)


@dataclass(frozen=True, slots=True)
class Decision:
    """`field` is the dotted place in the plan, `source` what settled it: recipe, model, hardware
    or default. `origin` is the place in the recipe, None where the recipe says nothing."""

    field: str
    value: Value
    source: str
    reason: str
    origin: str | None = None


class Ledger:
    """Collects decisions in order, failed constraints and unmet needs."""

    def __init__(self, origins: Mapping[str, Where]) -> None:
        self.decisions: list[Decision] = []
        self.failures: list[Problem] = []
        self.unmet: list[Unmet] = []
        self._origins = origins

    def note(self, field: str, value: Value, source: str, reason: str, key: str = "") -> None:
        where = self._origins.get(key)
        origin = str(where) if where else None
        self.decisions.append(Decision(field, value, source, reason, origin))

    def settle(
        self,
        field: str,
        wish: Chosen | Literal["auto"] | None,
        default: Chosen,
        source: str,
        reason: str,
        key: str,
    ) -> Chosen:
        """The wish if there is one, else the default; either way it is written down.

        A wish of "auto" takes the default, with the place where it says so.
        """
        if wish is None or wish == AUTO:
            self.note(field, default, source, reason, key)
            return default
        chosen = cast(Chosen, wish)
        self.note(field, chosen, RECIPE, "as the recipe says", key)
        return chosen

    def fail(self, code: str, key: str, message: str, hint: str) -> None:
        """A constraint that does not hold, at the recipe key that would mend it, or at the section
        that would hold it."""
        place = key
        while place and place not in self._origins:
            place = place.rpartition(".")[0]
        where = self._origins.get(place)
        problem = Problem(code=code, message=message, path=key, where=where, hint=hint)
        if problem not in self.failures:  # variants of an op may fail alike
            self.failures.append(problem)

    def need(self, need: str, detail: str) -> None:
        """Something that this build or this machine does not offer; the plan is still whole."""
        self.unmet.append(Unmet(need=need, detail=detail))

    def asks(self, key: str) -> bool:
        """Whether the recipe says anything at `key`."""
        return key in self._origins
