"""Every metric that is exported, and the table of them: python -m tests.server.metric_table"""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tokenspeed.metrics import FrontState, Metrics
from tokenspeed.wire import EngineStats

FILE = Path(__file__).parents[2] / "tokenspeed" / "METRICS.md"
HEAD = """\
# Metrics

What `/metrics` says, in the text format of Prometheus. Gauges of the engine are its state at the
moment of the scrape; while the worker does not answer they are left out. Counters go on when a
worker or a front is replaced. With several fronts the figures are those of all, whichever of them
answers. `containers/grafana/tokenspeed.json` is a dashboard of them.

This table is written by `python -m tests.server.metric_table`.

| name | kind | labels | meaning |
|---|---|---|---|
"""


def exported() -> list[tuple[str, str, str, str]]:
    """(name, kind, labels, meaning) of each; counters with their suffix."""
    metrics = Metrics()
    metrics.describe(version="0", model="m", plan="d")
    metrics.http_requests.labels("/", "200").inc()
    front = FrontState(
        ready=True,
        draining=False,
        open_requests=0,
        heartbeat_age=0.0,
        bad_frames=0,
        worker_starts=1,
        gpu_faults=0,
    )
    text = metrics.render(front, EngineStats()).decode()
    rows = []
    for family in text_string_to_metric_families(text):
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        suffix = "_total" if family.type == "counter" else ""
        name = family.name + suffix
        rows.append((name, family.type, ", ".join(sorted(labels)), family.documentation))
    return sorted(rows)


def table() -> str:
    return HEAD + "".join(f"| `{n}` | {k} | {labels} | {m} |\n" for n, k, labels, m in exported())


if __name__ == "__main__":
    FILE.write_text(table())
