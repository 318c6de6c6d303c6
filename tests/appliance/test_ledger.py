"""Two recipes on one machine; C31's other side: what is gone takes no room."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.cli.test_down import record_of
from tokenspeed.appliance.instance import UNIX, Record
from tokenspeed.appliance.ledger import needed_bytes, require_room
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.errors import TryAgainError
from tokenspeed.plan import MemoryItem, MemoryPlan, Plan

GIB = 2**30
RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2-135m-cpu.yaml"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_recipe(RECIPE).resolution.plan


def needing(plan: Plan, gib: int, *, budget: int = 10, kind: str = "cpu") -> Plan:
    items = (
        MemoryItem(name="weights", bytes=GIB, note=""),
        MemoryItem(name="kv cache", bytes=(gib - 1) * GIB, note=""),
        MemoryItem(name="headroom", bytes=(budget - gib) * GIB, note=""),
    )
    memory = MemoryPlan(device_bytes=12 * GIB, budget_bytes=budget * GIB, items=items)
    return replace(plan, memory=memory, device=replace(plan.device, kind=kind))


def running(root: Path, name: str, plan: Plan) -> Record:
    """An instance: this very process stands for its front."""
    folder = root / name
    folder.mkdir()
    record = dataclasses.replace(
        record_of(os.getpid(), 0.0), name=name, local=f"{UNIX}{folder / 'front.sock'}"
    )
    (folder / "plan.json").write_bytes(plan.to_json())
    (folder / "instance.json").write_bytes(msgspec.json.encode(record))
    return record


def later(record: Record, name: str) -> Record:
    return dataclasses.replace(record, name=name, start_ticks=record.start_ticks + 1)


def test_what_is_left_free_on_purpose_is_not_needed(plan: Plan) -> None:
    assert needed_bytes(needing(plan, 6)) == 6 * GIB


def test_two_that_fit_alone_but_not_together_are_not_both_started(
    plan: Plan, tmp_path: Path
) -> None:
    first = running(tmp_path, "one", needing(plan, 6))
    own = later(first, "two")
    require_room(own, needing(plan, 4), [tmp_path])
    with pytest.raises(TryAgainError, match="1GiB too much") as refused:
        require_room(own, needing(plan, 5), [tmp_path])
    assert "--set kv.size=3072MiB" in refused.value.problems[0].hint
    # The first one is not held up by who came after it.
    require_room(first, needing(plan, 9), [tmp_path])


def test_another_kind_of_device_and_what_is_gone_take_no_room(plan: Plan, tmp_path: Path) -> None:
    first = running(tmp_path, "one", needing(plan, 9, kind="cuda"))
    own = later(first, "two")
    require_room(own, needing(plan, 9), [tmp_path])
    gone = dataclasses.replace(first, name="gone", start_ticks=first.start_ticks - 1)
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "plan.json").write_bytes(needing(plan, 9).to_json())
    (tmp_path / "gone" / "instance.json").write_bytes(msgspec.json.encode(gone))
    require_room(own, needing(plan, 9), [tmp_path])
