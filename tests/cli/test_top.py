from __future__ import annotations

import dataclasses
import os

from tests.appliance.live import Home
from tests.cli.test_down import record_of
from tokenspeed.appliance.probe import Health
from tokenspeed.cli.top import Sample, as_json, rows_of, table


def sample(generated: float, at: float, pid: int = 1, **more: float) -> Sample:
    gauges = {f"tokenspeed_{name}": value for name, value in more.items()}
    gauges["tokenspeed_generated_tokens_total"] = generated
    record = dataclasses.replace(record_of(os.getpid(), 0.0), pid=pid)
    return Sample(record, Health("ready", "", 100, gauges), at)


def test_rates_are_taken_between_two_looks_at_one_process() -> None:
    cache = {"cache_blocks": 8.0, "cache_blocks_used": 2.0}
    prompts = {"prompt_tokens_total": 200.0, "cached_prompt_tokens_total": 50.0}
    (row,) = rows_of([sample(100, 10.0)], [sample(160, 12.0, **cache, **prompts)])
    assert row.answer_rate == 30.0
    assert (row.cache_share, row.hit_share) == (0.25, 0.25)
    assert row.prompt_rate is None  # the look before did not know it
    (row,) = rows_of([sample(100, 10.0)], [sample(5, 12.0, pid=2)])
    assert row.answer_rate is None  # another process since
    (row,) = rows_of([sample(100, 10.0)], [sample(5, 12.0)])
    assert row.answer_rate == 0.0
    assert as_json(row)["state"] == "ready"
    assert rows_of([sample(1, 1.0)], []) == []


def test_several_fronts_are_told() -> None:
    alone = rows_of([], [sample(1, 1.0, fronts=1.0)])
    both = rows_of([], [sample(1, 1.0, fronts=1.0), sample(1, 1.0, pid=2, fronts=3.0)])
    assert "FRONTS" not in [column.header for column in table(alone).columns]
    (shown,) = (list(one.cells) for one in table(both).columns if one.header == "FRONTS")
    assert shown == ["1", "3"]
    assert as_json(both[1])["fronts"] == 3


def test_nothing_runs() -> None:
    with Home() as home:
        done = home.run("top", "--once", "--every", "0.1")
    assert done.returncode == 0
    assert "tokenspeed up RECIPE" in done.stdout
