"""The smallest change that makes a recipe fit, found by trying, in a fixed order.

`ORDER` is that order: what costs an operator least comes first. Within a step the values go from
the mildest to the harshest, and where they are numbers the mildest that fits is searched for. One
change is tried before two; of two, the pair whose later change comes earliest. Everything is tried
twice: first for plans that need nothing beyond what the recipe's own plan needs of this build and
machine, then for any plan. A change is suggested only after a plan with it was made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from tokenspeed.checkpoint.formats import stored_bits
from tokenspeed.errors import Problem
from tokenspeed.plan import Plan, Unmet, WeightFormat
from tokenspeed.recipe.types import AttentionGroups, Recipe
from tokenspeed.resolve.cache import whole_size
from tokenspeed.resolve.ledger import Decision
from tokenspeed.resolve.parallel import DEVICES

# Failures that a change of size can mend.
MEMORY_CODES = ("TS-M001", "TS-M002", "TS-M003", "TS-M004")
LEAST_CONTEXT, LEAST_STEP = 1024, 512
MOST_RANKS = 64
# Weights are made narrower where that saves a quarter of their bits.
WORTHWHILE = 0.75
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Attempt:
    """What resolving came to: a plan, or the constraints that failed."""

    plan: Plan | None
    failures: tuple[Problem, ...]
    unmet: tuple[Unmet, ...]
    decisions: tuple[Decision, ...]

    def decided(self, field: str) -> Any:
        """The value of a decision, None where it was not reached."""
        return next((entry.value for entry in self.decisions if entry.field == field), None)


@dataclass(frozen=True, slots=True)
class Change:
    """Edits of a recipe: (key, value as the recipe spells it). `lacks` is what the plan with them
    needs beyond what the recipe as it is would."""

    edits: tuple[tuple[str, str], ...]
    lacks: tuple[str, ...]

    def told(self, failures: tuple[Problem, ...]) -> tuple[Problem, ...]:
        """The failures, the first of them with this way out."""
        written = ", ".join(f"{key}: {value}" for key, value in self.edits)
        first = failures[0]
        hint = f"smallest change that fits: {written}{self._beyond()}; else {first.hint}"
        return (replace(first, hint=hint), *failures[1:])

    def _beyond(self) -> str:
        """Devices are the machine's to have, all else the build's."""
        build = ", ".join(need for need in self.lacks if need != DEVICES)
        said = [f"this build cannot run that: {build}"] if build else []
        if DEVICES in self.lacks:
            said.append("the machine lacks devices")
        return f" ({'; '.join(said)})" if said else ""


def lacks_memory(failures: tuple[Problem, ...]) -> bool:
    """Whether memory alone is what fails, so that another size or device may mend it."""
    return all(problem.code in MEMORY_CODES for problem in failures)


def told_of_none(failures: tuple[Problem, ...], machine: str) -> tuple[Problem, ...]:
    """The failures, the first of them with the news that no change was found."""
    first = failures[0]
    hint = f"no change of one or two keys makes it fit {machine}; {first.hint}"
    return (replace(first, hint=hint), *failures[1:])


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of change. `values` are tried in order; between the last that does not fit and the
    first that does, whole multiples of `grain` are searched where it is not 0."""

    key: str
    values: Callable[[Recipe, Attempt], tuple[Any, ...]]
    grain: int = 0
    spell: Callable[[Any], str] = str


Try = Callable[[Recipe], Attempt]


def smallest_change(recipe: Recipe, failed: Attempt, attempt: Try) -> Change | None:
    """None where no change of one or two keys fits."""
    known = frozenset(unmet.need for unmet in failed.unmet)

    @functools.cache
    def tried(edits: tuple[tuple[str, Any], ...]) -> Attempt:
        return attempt(edited(recipe, edits))

    for beyond in (False, True):

        def fits(edits: tuple[tuple[str, Any], ...], beyond: bool = beyond) -> bool:
            plan = tried(edits).plan
            return plan is not None and (beyond or not lacking(plan, known))

        for steps in _combinations():
            edits = _mildest(recipe, failed, steps, fits)
            if edits is not None:
                plan = tried(edits).plan
                assert plan is not None, "a change that fits has a plan"
                spelt = tuple(
                    (step.key, step.spell(value))
                    for step, (_, value) in zip(steps, edits, strict=True)
                )
                return Change(spelt, lacking(plan, known))
    return None


def lacking(plan: Plan, known: frozenset[str]) -> tuple[str, ...]:
    return tuple(unmet.need for unmet in plan.unmet if unmet.need not in known)


def _combinations() -> Iterator[tuple[Step, ...]]:
    yield from ((step,) for step in ORDER)
    for place, later in enumerate(ORDER):
        yield from ((earlier, later) for earlier in ORDER[:place])


Edits = tuple[tuple[str, Any], ...]


def _mildest(
    recipe: Recipe, failed: Attempt, steps: tuple[Step, ...], fits: Callable[[Edits], bool]
) -> Edits | None:
    """The last of `steps` as mild as it can be; the ones before it at their harshest."""
    *earlier, step = steps
    before: list[tuple[str, Any]] = []
    for other in earlier:
        values = other.values(recipe, failed)
        if not values:
            return None
        before.append((other.key, values[-1]))
    refused: Any = None
    for value in step.values(recipe, failed):
        if fits((*before, (step.key, value))):
            if step.grain and refused is not None:
                value = _between(step, refused, value, lambda v: fits((*before, (step.key, v))))
            return (*before, (step.key, value))
        refused = value
    return None


def _between(step: Step, refused: int, fitting: int, fits: Callable[[int], bool]) -> int:
    """The fitting multiple of the grain that is nearest to what was refused."""
    low, high = fitting // step.grain, refused // step.grain
    while abs(high - low) > 1:
        middle = (low + high) // 2
        if fits(middle * step.grain):
            low = middle
        else:
            high = middle
    return low * step.grain if fits(low * step.grain) else fitting


def edited(recipe: Recipe, edits: Edits) -> Recipe:
    """A copy of the recipe with other values; what is between the keys is left alone."""
    for key, value in edits:
        recipe = _edited(recipe, key.split("."), value)
    return recipe


def _edited(section: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if not rest:
        return section.model_copy(update={name: value})
    inner = getattr(section, name)
    if inner is None:
        inner = AttentionGroups.model_construct()
    assert isinstance(inner, BaseModel)
    return section.model_copy(update={name: _edited(inner, rest, value)})


def _halves(start: int, least: int) -> tuple[int, ...]:
    """`start` itself first, which is known not to fit: the search begins between it and the
    next."""
    found = [start]
    while start > least:
        start = max(least, start // 2)
        found.append(start)
    return tuple(found)


def _doubles(start: int, most: int) -> tuple[int, ...]:
    found = [start]
    while start < most:
        start = min(most, start * 2)
        found.append(start)
    return tuple(found)


def _budget(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    """Only where the recipe itself fixed it."""
    wish = recipe.limits.memory
    if not isinstance(wish, int):
        return ()
    # No device has more than this; a budget above its device is refused.
    return (*_halves(wish, _MIB), *_doubles(wish, 2**40))


def _size(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    wish = recipe.kv.size
    return (*_halves(wish, _MIB), *_doubles(wish, 2**40)) if isinstance(wish, int) else ()


def _blocks(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    wish = recipe.kv.blocks
    return (*_halves(wish, 2), *_doubles(wish, 2**30)) if wish is not None else ()


def _fronts(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    """One serves as well, if fewer clients at once."""
    wish = recipe.serve.fronts
    return _halves(wish, 1) if wish is not None and wish > 1 else ()


def _running(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    running = failed.decided("scheduler.max_running")
    return _halves(running, 1) if isinstance(running, int) else ()


def _step_tokens(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    tokens, running = (
        failed.decided("scheduler.max_step_tokens"),
        failed.decided("scheduler.max_running"),
    )
    if not isinstance(tokens, int) or not isinstance(running, int):
        return ()
    return _halves(tokens, min(tokens, max(LEAST_STEP, running)))


def _context(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    """Only where the recipe fixed it: else it is lowered to what fits anyway."""
    wish = recipe.model.max_context
    return _halves(wish, min(wish, LEAST_CONTEXT)) if isinstance(wish, int) else ()


def _cache_type(recipe: Recipe, failed: Attempt) -> tuple[str, ...]:
    return () if failed.decided("cache.dtype") == "fp8" else ("fp8",)


def _weights(recipe: Recipe, failed: Attempt) -> tuple[str, ...]:
    """Formats of fewer bits than the ones that were decided, where it is worth the loss."""
    now = failed.decided("model.linear_format")
    if not isinstance(now, str):
        return ()
    experts = failed.decided("model.experts_format") or now
    bits = min(stored_bits(WeightFormat(now)), stored_bits(WeightFormat(experts)))
    ladder = ("bfloat16", "fp8", "int4")
    return tuple(kept for kept in ladder if stored_bits(WeightFormat(kept)) <= WORTHWHILE * bits)


def _ranks(recipe: Recipe, failed: Attempt) -> tuple[int, ...]:
    if failed.decided("device.kind") == "cpu":
        return ()
    tp = failed.decided("parallel.attention_tp")
    return _doubles(tp, MOST_RANKS) if isinstance(tp, int) else ()


def _spelt_size(value: int) -> str:
    return whole_size(value)


ORDER = (
    Step("limits.memory", _budget, _MIB, _spelt_size),
    Step("kv.size", _size, _MIB, _spelt_size),
    Step("kv.blocks", _blocks, 1),
    Step("serve.fronts", _fronts, 1),
    Step("limits.max_running", _running, 1),
    Step("limits.max_step_tokens", _step_tokens),
    Step("model.max_context", _context, 64),
    Step("kv.dtype", _cache_type),
    Step("quantization.weights", _weights),
    Step("parallel.attention.tp", _ranks),
)
