"""A call costs what it changes: counted work stays level while caches, contexts and queues grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduler.work import Work, counted, grows


@pytest.fixture(scope="module")
def work(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    return counted(repo / "tokenspeed" / "scheduler" / "csrc", tmp_path_factory.mktemp("cost"))


@pytest.mark.parametrize(
    "what", ["evict", "decode", "wait", "row", "retry", "retry_joint", "event"]
)
def test_work_does_not_grow(work: Work, what: str) -> None:
    counts = work[what]
    assert max(counts) >= 64 * min(counts)
    assert counts[min(counts)] > 20, "the counter counts"
    assert not grows(counts), counts
