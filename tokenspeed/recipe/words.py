"""Words that were meant: the nearest known one to a word that is not known."""

from __future__ import annotations

from collections.abc import Sequence


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that `word` was most likely meant to be, or None.

    Counts single-letter edits; up to two in five letters may be wrong.
    """

    def ranked(candidate: str) -> tuple[int, str]:
        return edits(word.lower().replace("-", "_"), candidate.lower()), candidate

    best = min(map(ranked, known), default=None)
    if best is None or best[0] > max(1, 2 * max(len(word), len(best[1])) // 5):
        return None
    return best[1]


def edits(left: str, right: str) -> int:
    """Letters to insert, delete, replace or swap with their neighbour (optimal alignment)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        current = [i]
        for j, b in enumerate(right, start=1):
            cost = min(row[j] + 1, current[j - 1] + 1, row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and b == left[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, row = row, current
    return row[-1]
