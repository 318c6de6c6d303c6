"""From a recipe to a generation, and from one generation to the next; shared by verbs."""

from __future__ import annotations

import signal
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tokenspeed import env
from tokenspeed.appliance.generations import RECIPE, GenerationError, Generations, acting_for
from tokenspeed.appliance.instance import Record
from tokenspeed.appliance.probe import look
from tokenspeed.appliance.process import Handle
from tokenspeed.appliance.progress import Display, Rate, display
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import parse
from tokenspeed.cli.instances import is_name, running
from tokenspeed.cli.locking import lock_of, progress
from tokenspeed.cli.planning import Planned, plan_recipe
from tokenspeed.errors import Problem, TryAgainError, UsageError
from tokenspeed.plan import Plan
from tokenspeed.resolve.lock import lock_path

TEMPLATE = "chat_template.jinja"
_LOOK_SECONDS = 0.1
_HEADER = "# A generation: the recipe as it came to be, with everything it extends and --set.\n"


def generations_of(name: str) -> Generations:
    """Those of this user, else of the system; new ones are this user's. Raises UsageError where
    no recipe can have that name."""
    if not is_name(name):
        raise UsageError(
            Problem(
                code="TS-C001",
                message=f"{name!r} is not the name of a recipe",
                hint="give the name in the recipe: letters a-z, digits and inner hyphens",
            )
        )
    roots = [env.data_root() / name, env.SYSTEM_STATE_ROOT / name]
    for root in roots:
        if Generations(root).exist:
            return Generations(root)
    return Generations(roots[0])


def files_of(planned: Planned) -> dict[str, str]:
    """A generation's files by name: a recipe that needs no other file, and its lock."""
    plan = planned.resolution.plan
    values: dict[str, Any] = deepcopy(planned.loaded.values)
    values["model"]["source"] = plan.model.source  # its path is absolute
    draft = values.get("speculation", {}).get("draft", "")
    if draft.startswith("path:"):
        folder = planned.loaded.folder_of("speculation.draft")
        values["speculation"]["draft"] = f"path:{parse(draft).directory(folder)}"
    files: dict[str, str] = {}
    if values.get("serve", {}).get("chat_template"):
        files[TEMPLATE] = plan.model.chat_template or ""
        values["serve"]["chat_template"] = TEMPLATE
    head = {key: values.pop(key) for key in ("version", "name")}
    body = yaml.safe_dump(head | values, sort_keys=False, allow_unicode=True, width=100)
    files[RECIPE] = _HEADER + body
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        again = plan_recipe(folder / RECIPE, hardware=planned.hardware)
        assert again.resolution.plan == plan, "a generation plans as its recipe did"
        files[lock_path(Path(RECIPE)).name] = lock_of(again, progress).to_yaml()
    return files


def put(generations: Generations, planned: Planned, seconds: float | None) -> int | None:
    """Makes a generation of the recipe, with its weights at hand, and selects it. None when it is
    what runs already."""
    files = files_of(planned)
    with acting_for(_existing(generations.root)), display() as shown:
        generations.root.mkdir(parents=True, exist_ok=True)
        if generations.exist and _is_current(generations, files):
            return None
        _fetch(planned.resolution.plan, generations.root.parent / "weights", shown)
        number = generations.add(files)
        generations.select(number, seconds)
    return number


def switch(generations: Generations, record: Record) -> None:
    """Has the running instance go on with the generation that is selected; waits until it is
    ready. Raises GenerationError when it gave way to another one."""
    if record.generation is None:
        raise GenerationError(
            Problem(
                code="TS-S253",
                message=f"{record.name} (pid {record.pid}) runs from its recipe file, not from a "
                "generation",
                hint=f"`tokenspeed down {record.name}`, then `tokenspeed up --installed "
                f"{record.name}` starts the generation that was made now",
            )
        )
    state, wanted = generations.state(), generations.current
    try:
        handle = Handle(record.pid, record.start_ticks)
    except ProcessLookupError:
        raise _ended(record) from None
    with display() as shown:
        try:
            handle.send(signal.SIGUSR1)
            while not _is_over(generations, record, wanted):
                _show(record, shown)
                if handle.ended(_LOOK_SECONDS):
                    raise _ended(record)
        finally:
            handle.close()
    last = generations.state().last
    if generations.current != wanted and last is not None and last != state.last:
        raise GenerationError(
            Problem(
                code="TS-S254",
                message=f"generation {last.generation} of {record.name} gave way to "
                f"{generations.current}: {last.reason}",
                hint=f"its files are in {generations.recipe(last.generation).parent}",
            )
        )


def _is_over(generations: Generations, record: Record, wanted: int) -> bool:
    """Whether what is current runs and was asked its first question."""
    trial = generations.state().trial
    if trial is not None and trial.ready is None:
        return False
    now = running(record.name)
    return now is not None and bool(now.greeting) and now.generation == generations.current


def _show(record: Record, shown: Display) -> None:
    now = running(record.name)
    if now is None:
        return
    health = look(now)
    if health.state == "starting":
        shown.stage(health.detail)
        shown.fraction(health.percent / 100)
    else:
        shown.stage(health.state)


def _fetch(plan: Plan, store: Path, shown: Display) -> None:
    """Before anything stops: a download would hold up the next start."""
    source = parse(plan.model.source)
    if source.kind != "path" and plan.model.load == "weights":
        watch = Watch(shown.stage, Rate(shown))
        token = env.secret(plan.model.token).strip() if plan.model.token else None
        Store(store).obtain(source, plan.model.files, watch, token=token)


def _is_current(generations: Generations, files: dict[str, str]) -> bool:
    folder = generations.recipe(generations.current).parent
    return all(
        (folder / name).is_file() and (folder / name).read_text(encoding="utf-8") == text
        for name, text in files.items()
    )


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return path if path.is_dir() else _existing(path.parent)


def _ended(record: Record) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S255",
            message=f"{record.name} (pid {record.pid}) ended meanwhile",
            hint=f"`tokenspeed status {record.name}` shows its state; its next start decides which "
            "generation runs",
        )
    )
