"""C33: counters never go down, gauges are never frozen."""

from __future__ import annotations

from dataclasses import replace

from tokenspeed.metrics import (
    ENGINE_METRICS,
    FRONT_METRICS,
    FrontState,
    Metrics,
    added,
    combined,
)
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


def test_what_several_fronts_counted_is_added() -> None:
    """Series that only others have appear, too; a front that is gone keeps what it counted."""
    fronts = [Metrics() for _ in range(3)]
    for number, metrics in enumerate(fronts):
        metrics.http_requests.labels("/v1/models", "200").inc()
        metrics.http_requests.labels("/v1/models", str(400 + number)).inc(number)
        metrics.request_seconds.observe(0.02 * number)
    first, *others = fronts
    gone = added([others[1].counts()])
    text = first.render(FRONT, None, [others[0].counts(), gone]).decode()
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    requests = "tokenspeed_http_requests_total"
    assert series[f'{requests}{{route="/v1/models",status="200"}}'] == "3.0"
    assert series[f'{requests}{{route="/v1/models",status="402"}}'] == "2.0"
    assert series["tokenspeed_request_seconds_count"] == "3.0"
    assert series['tokenspeed_request_seconds_bucket{le="0.025"}'] == "2.0"
    assert float(series["tokenspeed_request_seconds_sum"]) == 0.06
    assert text.count("# TYPE tokenspeed_http_requests_total") == 1


def test_the_state_of_several_fronts_is_one() -> None:
    other = replace(FRONT, open_requests=3, heartbeat_age=0.7, bad_frames=2, worker_starts=9)
    whole = combined(FRONT, [other])
    assert (whole.fronts, whole.open_requests, whole.heartbeat_age) == (2, 5, 0.7)
    assert (whole.bad_frames, whole.worker_starts) == (2, 1)
