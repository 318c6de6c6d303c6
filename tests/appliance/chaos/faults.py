"""What goes wrong, one function a fault. Each leaves the machine as it found it; what is broken
in the service is the service's to mend.

A function returns once its fault is over, which is from when recovery is counted, or, for a fault
that stays, once it is in place.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.appliance.chaos.world import HANG, World, hold
from tests.appliance.live import until

Inject = Callable[[World, random.Random], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """`gentle`: nobody's request may suffer."""

    name: str
    inject: Inject
    gentle: bool = False


# ---- processes


def until_met(world: World, before: int) -> None:
    """Until a worker that was started after `before` met the fault, or got past it."""
    after = world.worker(other_than=before)
    until(lambda: after not in world.home.processes() or world.is_ready(), "it is met", 60.0)


def kill_worker(world: World, draw: random.Random) -> None:
    os.kill(world.worker(), signal.SIGKILL)


def abort_worker(world: World, draw: random.Random) -> None:
    os.kill(world.worker(), draw.choice((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)))


def pause_worker(world: World, draw: random.Random) -> None:
    worker = world.worker()
    os.kill(worker, signal.SIGSTOP)
    hold(draw.uniform(0.1, HANG / 2))
    os.kill(worker, signal.SIGCONT)


def stop_worker(world: World, draw: random.Random) -> None:
    worker = world.worker()
    os.kill(worker, signal.SIGSTOP)
    until(lambda: worker not in world.home.processes(), "the worker that hangs is ended", 20.0)


def kill_loading_worker(world: World, draw: random.Random) -> None:
    first = world.worker()
    os.kill(first, signal.SIGKILL)
    second = world.worker(other_than=first)
    hold(draw.uniform(0, 1))
    os.kill(second, signal.SIGKILL)


def stop_loading_worker(world: World, draw: random.Random) -> None:
    first = world.worker()
    os.kill(first, signal.SIGKILL)
    second = world.worker(other_than=first)
    hold(draw.uniform(0, 0.5))
    os.kill(second, signal.SIGSTOP)
    until(lambda: second not in world.home.processes(), "the worker that hangs is ended", 20.0)


def kill_front(world: World, draw: random.Random) -> None:
    os.kill(world.front_pid, signal.SIGKILL)
    world.ended()
    world.boot()


def kill_loading_front(world: World, draw: random.Random) -> None:
    kill_front(world, draw)
    hold(draw.uniform(0, 2))
    kill_front(world, draw)


def kill_both(world: World, draw: random.Random) -> None:
    pids = [world.front_pid, world.worker()]
    draw.shuffle(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    world.ended()
    world.boot()


def pause_front(world: World, draw: random.Random) -> None:
    """Longer than a worker may be silent: the time that was lost is nobody's silence."""
    os.kill(world.front_pid, signal.SIGSTOP)
    hold(draw.uniform(0.5, 2 * HANG))
    os.kill(world.front_pid, signal.SIGCONT)


def stop_front(world: World, draw: random.Random) -> None:
    """The manager's watchdog ends it."""
    os.kill(world.front_pid, signal.SIGSTOP)
    hold(0.5)
    for number in (signal.SIGABRT, signal.SIGKILL):
        os.kill(world.front_pid, number)
    world.ended()
    world.boot()


def kill_further(world: World, draw: random.Random) -> None:
    before = world.further()
    os.kill(before, draw.choice((signal.SIGKILL, signal.SIGSEGV)))
    world.further(other_than=before)


def end_further(world: World, draw: random.Random) -> None:
    before = world.further()
    os.kill(before, signal.SIGTERM)
    world.further(other_than=before)


def stop_further(world: World, draw: random.Random) -> None:
    before = world.further()
    os.kill(before, signal.SIGSTOP)
    world.further(other_than=before)


def kill_further_and_worker(world: World, draw: random.Random) -> None:
    further, worker = world.further(), world.worker()
    for pid in draw.sample((further, worker), 2):
        os.kill(pid, signal.SIGKILL)
    world.further(other_than=further)


def drain(world: World, draw: random.Random) -> None:
    os.kill(world.front_pid, signal.SIGTERM)
    assert world.ended() == 0
    world.boot()


def drain_without_worker(world: World, draw: random.Random) -> None:
    """The worker is killed, or hangs, while open requests are waited for."""
    worker = world.worker()
    os.kill(world.front_pid, signal.SIGTERM)
    hold(draw.uniform(0, 0.3))
    os.kill(worker, draw.choice((signal.SIGKILL, signal.SIGSTOP)))
    assert world.ended() == 0
    world.boot()


# ---- the disk


def fill_disk(world: World, draw: random.Random) -> None:
    with world.full_disk():
        hold(draw.uniform(0.2, 1))


def fill_disk_and_kill_worker(world: World, draw: random.Random) -> None:
    before = world.worker()
    with world.full_disk():
        os.kill(before, signal.SIGKILL)
        until_met(world, before)


def fill_disk_and_kill_front(world: World, draw: random.Random) -> None:
    os.kill(world.front_pid, signal.SIGKILL)
    world.ended()
    with world.full_disk():
        front = world.boot()
        until(lambda: front.process.poll() is not None or world.is_ready(), "it is met", 60.0)


# ---- weights and other files


def weights(world: World) -> Path:
    return max(world.model.iterdir(), key=lambda path: path.stat().st_size)


def hide_weights(world: World, draw: random.Random) -> None:
    away, before = world.model.with_name("away"), world.worker()
    hidden = draw.choice((world.model, weights(world)))
    hidden.rename(away)
    os.kill(before, signal.SIGKILL)
    until_met(world, before)
    away.rename(hidden)


def truncate_weights(world: World, draw: random.Random) -> None:
    """Under the running worker; the next one is not started before it is mended."""
    path, before = weights(world), world.worker()
    os.truncate(path, draw.randrange(path.stat().st_size))
    hold(draw.uniform(0, 0.3))
    with contextlib.suppress(ProcessLookupError):  # what it had mapped is gone
        os.kill(before, signal.SIGKILL)
    hold(draw.uniform(0, 2))
    world.heal_weights()


def truncate_model(world: World, draw: random.Random) -> None:
    """A file beside the weights, before a start: it says so, and starts once it is mended."""
    os.kill(world.front_pid, signal.SIGKILL)
    world.ended()
    path = world.model / draw.choice(("config.json", "tokenizer.json", weights(world).name))
    os.truncate(path, draw.randrange(path.stat().st_size))
    assert _refused(world) != 70
    world.heal_weights()
    world.boot()


def truncate_generation(world: World, draw: random.Random) -> None:
    os.kill(world.front_pid, signal.SIGKILL)
    world.ended()
    path = world.generation / draw.choice(("recipe.yaml", "recipe.lock"))
    data = path.read_bytes()
    os.truncate(path, draw.randrange(len(data)))
    assert _refused(world) != 70
    path.write_bytes(data)
    world.boot()


def truncate_state(world: World, draw: random.Random) -> None:
    """Which generations were good is lost; the one that runs is not."""
    os.kill(world.front_pid, signal.SIGKILL)
    world.ended()
    path = world.home.data_root / "demo" / "state.json"
    path.write_bytes(world.state[: draw.randrange(len(world.state))])
    world.boot()


def truncate_plan(world: World, draw: random.Random) -> None:
    """What a worker reads at its start."""
    path = world.home.run_root / "demo" / "plan.json"
    os.truncate(path, draw.randrange(path.stat().st_size))
    kill_worker(world, draw)


def _refused(world: World) -> int:
    """Starts the service, which cannot be; returns the exit code, which is one of ours."""
    world.boot()
    code = world.ended()
    assert 64 <= code <= 78, code
    return code


# ---- the port and the clock


def take_port(world: World, draw: random.Random) -> None:
    os.kill(world.front_pid, signal.SIGKILL)
    world.ended()
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", world.port))
        taker.listen()
        assert _refused(world) == 75
    world.boot()


def jump(world: World, draw: random.Random) -> None:
    world.set_clock(draw.choice((-1, 1)) * draw.choice((2, 3600, 86400, 400 * 86400)))
    hold(draw.uniform(0.5, 2 * HANG))


def jump_and_kill(world: World, draw: random.Random) -> None:
    world.set_clock(draw.choice((-1, 1)) * draw.choice((3600, 400 * 86400)))
    draw.choice((kill_worker, kill_front))(world, draw)


FAULTS = (
    Fault("worker killed", kill_worker),
    Fault("worker faults (SEGV, BUS, ABRT)", abort_worker),
    Fault("worker paused", pause_worker, gentle=True),
    Fault("worker stopped for good", stop_worker),
    Fault("worker killed, the next one while loading", kill_loading_worker),
    Fault("worker killed, the next one stopped while loading", stop_loading_worker),
    Fault("front killed", kill_front),
    Fault("front killed, and again while starting", kill_loading_front),
    Fault("front and worker killed", kill_both),
    Fault("front paused", pause_front, gentle=True),
    Fault("front stopped for good", stop_front),
    Fault("second front killed", kill_further),
    Fault("second front asked to end", end_further),
    Fault("second front stopped for good", stop_further),
    Fault("second front and worker killed", kill_further_and_worker),
    Fault("restart under load", drain),
    Fault("restart, worker killed or stopped meanwhile", drain_without_worker),
    Fault("disk full", fill_disk, gentle=True),
    Fault("disk full, worker killed", fill_disk_and_kill_worker),
    Fault("disk full, front killed", fill_disk_and_kill_front),
    Fault("weights gone, worker killed", hide_weights),
    Fault("weights truncated, worker killed", truncate_weights),
    Fault("model truncated, front killed", truncate_model),
    Fault("generation truncated, front killed", truncate_generation),
    Fault("state of generations truncated, front killed", truncate_state),
    Fault("plan truncated, worker killed", truncate_plan),
    Fault("port taken, front killed", take_port),
    Fault("clock jumps", jump, gentle=True),
    Fault("clock jumps, front or worker killed", jump_and_kill),
)
