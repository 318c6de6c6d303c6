"""Generations of an installed recipe: a new plan beside the old, tried, then confirmed or undone.

    <data_root>/<name>/
        generations/<n>/          never changed once there
            recipe.yaml           the recipe as it came to be: one file, absolute paths
            recipe.lock           what it must resolve to
        current                   link to the generation that runs, or starts next
        state.json                the State below
        lock                      held while either is changed

A generation on trial that ends before it was ready, or is not confirmed in time, gives way to the
one confirmed before. Whoever starts next decides that, so it needs nobody to be alive meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tokenspeed.errors import ExitCode, Problem, TokenspeedError
from tokenspeed.files import read_regular

log = logging.getLogger(__name__)

KEPT = 5  # confirmed generations that stay for a rollback
LOCK_SECONDS = 10.0
RECIPE = "recipe.yaml"


class GenerationError(TokenspeedError):
    """There is no such generation, or it cannot be done now."""

    exit_code = ExitCode.UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`seconds` to confirm it in once it is ready; None: being ready confirms it. `begun` and
    `ready` are seconds of the machine's monotonic clock, None before: each start sets them anew."""

    generation: int
    seconds: float | None
    begun: float | None = None
    ready: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the last trial ended: `reason` is "" when it was confirmed."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """`confirmed` are the generations that were found good, in that order; the last one is what a
    failed trial gives way to."""

    confirmed: tuple[int, ...] = ()
    trial: Trial | None = None
    last: Outcome | None = None


class Generations:
    """Those below `root`, the folder of one name."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self._clock = clock

    # ---- looking

    @property
    def exist(self) -> bool:
        return (self.root / "current").is_symlink()

    @property
    def current(self) -> int:
        """Raises GenerationError when there is none."""
        try:
            return int((self.root / "current").readlink().name)
        except (OSError, ValueError) as error:
            raise _none(self.root) from error

    def recipe(self, number: int) -> Path:
        return self.root / "generations" / str(number) / RECIPE

    def numbers(self) -> list[int]:
        found = (path.name for path in (self.root / "generations").glob("*"))
        return sorted(int(name) for name in found if name.isdecimal())

    def state(self) -> State:
        """Raises GenerationError when it cannot be read."""
        path = self.root / "state.json"
        try:
            return msgspec.json.decode(read_regular(path), type=State)
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise _cannot("read", self.root, error) from error
        except msgspec.DecodeError as error:
            # What is selected is known still. What was good before is not, so there is no way back.
            log.error(
                "%s is damaged (%s): generation %d is taken as good", path, error, self.current
            )
            return State(confirmed=(self.current,))

    # ---- changing

    def add(self, files: dict[str, str]) -> int:
        """A new generation with these files: whole, or not there at all."""
        parent = self.root / "generations"
        parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            draft = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
            draft.chmod(0o755)
            for name, text in files.items():
                _write_whole(draft / name, text.encode())
            number = max(self.numbers(), default=0) + 1
            draft.rename(parent / str(number))
        return number

    def select(self, number: int, seconds: float | None) -> None:
        """Puts a generation on trial: what starts next is that one."""
        if not self.recipe(number).is_file():
            raise _no_such(self.root, number)
        with self._alone():
            trial = Trial(generation=number, seconds=seconds)
            state = replace(self.state(), trial=trial)
            self._point_at(number)
            self._write(state)

    def begin(self) -> int:
        """The generation to start now. One that was begun and did not come to a clean end gives
        way. Raises GenerationError when there is none."""
        _ = self.current
        with self._alone():
            state = self.state()
            if state.trial and state.trial.begun is not None:
                done = "was not confirmed" if state.trial.ready else "was not ready"
                state = self._give_way(state, f"it ended while it {done}") or state
            if state.trial:
                trial = replace(state.trial, begun=self._clock(), ready=None)
                self._write(replace(state, trial=trial))
            return self.current

    def put_off(self) -> None:
        """It was stopped on purpose: the trial begins anew with the next start."""
        with self._alone():
            state = self.state()
            if state.trial:
                self._write(replace(state, trial=replace(state.trial, begun=None, ready=None)))

    def ready(self) -> None:
        """The generation that was begun answers. Confirms it, unless that needs a person."""
        with self._alone():
            state = self.state()
            if state.trial is None:
                return
            if state.trial.seconds is None:
                self._confirm(state)
            else:
                self._write(replace(state, trial=replace(state.trial, ready=self._clock())))

    def confirm(self) -> int:
        """Raises GenerationError when nothing is on trial, or it is not ready yet."""
        with self._alone():
            state = self.state()
            if state.trial is None or state.trial.ready is None:
                raise _nothing_to_confirm(self.root)
            self._confirm(state)
            return state.trial.generation

    def fall_back(self, reason: str) -> bool:
        """Ends the trial. False when none is on, or there is nothing to give way to."""
        with self._alone():
            return self._give_way(self.state(), reason) is not None

    def remaining(self) -> float | None:
        """Seconds left to confirm what runs; None when nothing waits for that."""
        trial = self.state().trial
        if trial is None or trial.seconds is None or trial.ready is None:
            return None
        return trial.ready + trial.seconds - self._clock()

    def previous(self) -> int:
        """The one confirmed before what runs. Raises GenerationError when there is none."""
        current = self.current
        earlier = [number for number in self.state().confirmed if number != current]
        if not earlier:
            raise _nothing_before(self.root)
        return earlier[-1]

    def garbage(self) -> list[int]:
        """What `collect` would delete."""
        return self._garbage(self.state()) if self.exist else []

    def collect(self) -> list[int]:
        """Deletes what no rollback leads to; returns their numbers."""
        with self._alone():
            return self._collect(self.state())

    # ---- inside, with the lock held

    def _confirm(self, state: State) -> None:
        assert state.trial is not None
        number = state.trial.generation
        confirmed = (*(other for other in state.confirmed if other != number), number)
        last = Outcome(generation=number, reason="")
        self._write(State(confirmed=confirmed[-KEPT:], last=last))
        self._collect(self.state())

    def _give_way(self, state: State, reason: str) -> State | None:
        if state.trial is None or not state.confirmed:
            return None
        self._point_at(state.confirmed[-1])
        last = Outcome(generation=state.trial.generation, reason=reason)
        after = State(confirmed=state.confirmed, last=last)
        self._write(after)
        return after

    def _collect(self, state: State) -> list[int]:
        gone = self._garbage(state)
        for number in gone:
            shutil.rmtree(self.root / "generations" / str(number))
        return gone

    def _garbage(self, state: State) -> list[int]:
        wanted = {*state.confirmed, self.current}
        if state.trial:
            wanted.add(state.trial.generation)
        # A failed one stays until the next, to be looked into.
        if state.last:
            wanted.add(state.last.generation)
        newest = max(wanted)  # later ones are yet to be selected
        return [n for n in self.numbers() if n < newest and n not in wanted]

    def _point_at(self, number: int) -> None:
        draft = self.root / "current.new"
        draft.unlink(missing_ok=True)
        draft.symlink_to(Path("generations") / str(number))
        draft.replace(self.root / "current")

    def _write(self, state: State) -> None:
        draft = self.root / "state.json.new"
        data = msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
        _write_whole(draft, data)
        draft.replace(self.root / "state.json")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            lock = os.open(self.root / "lock", flags, 0o600)
            try:
                _take(lock)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise _cannot("changed", self.root, error) from error


def _take(lock: int) -> None:
    """Others hold it for moments; one that was stopped meanwhile holds up nobody for ever."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)


def _write_whole(path: Path, data: bytes) -> None:
    """On the disk when this returns: a power cut leaves no part of it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def acting_for(folder: Path) -> Iterator[None]:
    """As root: files are read and made as the owner of `folder`, who runs the service.

    So root never follows a link that the service could have laid.
    """
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group = os.getegid()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def _none(root: Path) -> GenerationError:
    return GenerationError(
        Problem(
            code="TS-S250",
            message=f"there is no generation of {root.name} in {root}",
            hint=f"`tokenspeed apply RECIPE` makes one from a recipe named {root.name}",
        )
    )


def _cannot(done: str, root: Path, error: OSError) -> GenerationError:
    if isinstance(error, BlockingIOError):
        why = f"another process holds its lock for more than {LOCK_SECONDS:g} s"
        hint = f"`fuser {root / 'lock'}` names it; a stopped `tokenspeed apply` goes on with `fg`"
    else:
        why = str(error)
        hint = (
            "is there room, and is the folder the service's own? `df -h`, `df -i` and `ls -ld` of "
            "it say so"
        )
    message = f"the generations in {root} cannot be {done}: {why}"
    return GenerationError(Problem(code="TS-S256", message=message, hint=hint))


def _no_such(root: Path, number: int) -> GenerationError:
    return GenerationError(
        Problem(
            code="TS-S250",
            message=f"there is no generation {number} of {root.name}",
            hint=f"`tokenspeed generations {root.name}` lists the existing ones",
        )
    )


def _nothing_to_confirm(root: Path) -> GenerationError:
    return GenerationError(
        Problem(
            code="TS-S251",
            message=f"no generation of {root.name} is ready and waiting to be confirmed",
            hint="`tokenspeed apply --mode try RECIPE` puts one on trial",
        )
    )


def _nothing_before(root: Path) -> GenerationError:
    return GenerationError(
        Problem(
            code="TS-S252",
            message=f"no other generation of {root.name} was ever confirmed",
            hint=f"`tokenspeed generations {root.name}` lists the existing ones",
        )
    )
