"""What went wrong, as text: the problem, the place with its line, the way out.

error[TS-R010]: kv.blok_size: unknown key
  --> demo.yaml:6:3
   |
 6 |   blok_size: 16
   |   ^
  help: did you mean block_size?
"""

from __future__ import annotations

from pathlib import Path

from tokenspeed.errors import Problem, TokenspeedError, Where
from tokenspeed.recipe.secrets import masked_line

_MAX_EXCERPT = 120


def render(error: TokenspeedError) -> str:
    """All problems of one error, a blank line between them, and their number where many."""
    blocks = [problem_text(problem) for problem in error.problems]
    if len(blocks) > 1:
        blocks.append(f"{len(blocks)} problems\n")
    return "\n".join(blocks)


def problem_text(problem: Problem) -> str:
    path = f"{problem.path}: " if problem.path else ""
    lines = [f"error[{problem.code}]: {path}{problem.message}"]
    if problem.where is not None:
        lines.append(f"  --> {problem.where}")
        lines += _excerpt(problem.where)
    if problem.hint:
        lines.append(f"  help: {problem.hint}")
    return "\n".join(lines) + "\n"


def _excerpt(where: Where) -> list[str]:
    """The line with a caret below the column; nothing where the file cannot be read."""
    if where.line == 0:
        return []
    path = Path(where.file)
    try:
        if not path.is_file():  # what came through a pipe does not come twice
            return []
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return []
    source = text.splitlines()
    if where.line > len(source):
        return []
    # A tab is one column of the place, and must be one column of the excerpt.
    line = masked_line(source, where.line - 1).replace("\t", " ")[:_MAX_EXCERPT]
    number = str(where.line)
    margin = " " * len(number)
    return [
        f"   {margin}|",
        f"  {number} | {line}",
        f"   {margin}| {' ' * (where.column - 1)}^",
    ]
