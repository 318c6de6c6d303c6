"""C33: counters never go down, gauges are never frozen."""

from __future__ import annotations

from tokenspeed.metrics import ENGINE_METRICS, FRONT_METRICS, FrontState, Metrics
from tokenspeed.wire import EngineStats

FRONT = FrontState(
    ready=True,
    draining=False,
    open_requests=2,
    heartbeat_age=0.1,
    bad_frames=0,
    worker_starts=1,
    gpu_faults=0,
)


def scrape(metrics: Metrics, engine: EngineStats | None) -> dict[str, float]:
    lines = metrics.render(FRONT, engine).decode().splitlines()
    rows = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def test_every_figure_of_the_engine_is_shown() -> None:
    assert {row[0] for row in ENGINE_METRICS} == set(EngineStats.__struct_fields__)
    assert {row[0] for row in FRONT_METRICS} == set(FrontState.__dataclass_fields__)
    found = scrape(Metrics(), EngineStats())
    for _, name, kind, _ in (*ENGINE_METRICS, *FRONT_METRICS):
        assert (f"{name}_total" if kind == "counter" else name) in found
    assert not any("_created" in name for name in found)


def test_counters_go_on_when_a_worker_is_replaced() -> None:
    metrics = Metrics()
    counted = []
    for generated in (10, 25, 3, 4, 0, 9):
        stats = EngineStats(steps=generated, generated_tokens=generated, running=generated)
        found = scrape(metrics, stats)
        counted.append(found["tokenspeed_generated_tokens_total"])
        assert found["tokenspeed_requests_running"] == generated
    assert counted == [10, 25, 28, 29, 29, 38]


def test_what_is_not_known_is_left_out() -> None:
    metrics = Metrics()
    scrape(metrics, EngineStats(running=5))
    found = scrape(metrics, None)
    assert "tokenspeed_requests_running" not in found
    assert found["tokenspeed_open_requests"] == 2
