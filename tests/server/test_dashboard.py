"""What is documented is exported, and a dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.server.metric_table import FILE, exported, table

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}


def queries(node: Any) -> list[str]:
    """Every expression of panels and variables."""
    if isinstance(node, list):
        return [found for item in node for found in queries(item)]
    if not isinstance(node, dict):
        return []
    own = [node[key] for key in ("expr", "definition") if isinstance(node.get(key), str)]
    return own + queries(list(node.values()))


def series() -> set[str]:
    return {
        name + suffix for name, kind, _, _ in exported() for suffix in SUFFIXES.get(kind, ("",))
    }


def test_every_metric_is_documented_and_the_other_way_round() -> None:
    assert FILE.read_text() == table(), "python -m tests.server.metric_table"
    assert all(meaning.endswith(".") for _, _, _, meaning in exported())


def test_every_query_of_the_dashboard_refers_to_what_is_exported(repo: Path) -> None:
    board = json.loads((repo / "containers/grafana/tokenspeed.json").read_text())
    found = queries(board)
    assert len(found) > 20
    known = series()
    for query in found:
        names = set(re.findall(r"\btokenspeed_\w+", query))
        assert names, query
        assert names <= known, query
        assert query.count("(") == query.count(")"), query


def test_panels_do_not_lie_on_one_another(repo: Path) -> None:
    board = json.loads((repo / "containers/grafana/tokenspeed.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken, panel["title"]
        assert max(columns) < 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
