"""Traces of what a worker computes, for Perfetto or chrome://tracing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Trace:
    """`steps` were recorded in `file`."""

    file: str
    steps: int


@dataclass(frozen=True, slots=True)
class _Recording:
    began: int  # steps so far, when it did
    last: int
    until: float
    profile: profile


class Profiler:
    """Records one stretch of steps at a time. Without one it costs nothing.

    `folder` must exist; a trace gets a name of its own there. To be used on the thread that
    launches the steps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recording: _Recording | None = None

    @property
    def recording(self) -> bool:
        return self._recording is not None

    def begin(self, now_at: int, steps: int, until: float) -> None:
        """From step `now_at` on, for `steps` of them, or until that time on the clock of
        `finish`."""
        assert self._recording is None
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        # The steps of a CPU run on a thread of their own.
        everywhere = _ExperimentalConfig(profile_all_threads=True)
        made = profile(activities=activities, experimental_config=everywhere)
        made.start()
        self._recording = _Recording(now_at, now_at + steps, until, made)

    def finish(self, now_at: int, now: float) -> Trace | None:
        """The trace, once it has its steps or its time is over; then it is on disk."""
        recording = self._recording
        if recording is None or (now_at < recording.last and now < recording.until):
            return None
        self._recording = None
        recording.profile.stop()
        file = self._free_name()
        # Not packed, which would take ten times as long: other requests wait meanwhile.
        recording.profile.export_chrome_trace(str(file))
        return Trace(str(file), now_at - recording.began)

    def _free_name(self) -> Path:
        names = (self._folder / f"profile-{number}.json" for number in range(1, MAX_FILES))
        return next(name for name in names if not name.exists())
