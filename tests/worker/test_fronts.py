"""The listening socket of a worker, with fronts in the same thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rigs.fronts import BareFront, connected
from tokenspeed import wire
from tokenspeed.worker import fronts
from tokenspeed.worker.fronts import Connection, Fronts


class Listening:
    """The sockets, and who was said to be gone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.gone: list[tuple[str, str]] = []
        self.sockets = Fronts(path, lambda front, why: self.gone.append((front, why)))

    def receive(self) -> tuple[Connection, bytes]:
        """The next frame; it must be on its way."""
        while True:
            self.sockets.wait(10)
            received = self.sockets.receive()
            if received is not None:
                return received

    def meet(self, name: str) -> BareFront:
        """A front that has said who it is."""
        front = BareFront(name, self.path)
        front.say(wire.Hello())
        connection, frame = self.receive()
        assert self.sockets.name(connection, wire.decode_from_front(frame).front_id)
        return front


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(f"{tmp_path}/worker.sock")
    yield made
    made.sockets.close(0)


@pytest.fixture
def meet(listening: Listening) -> Iterator[Callable[[str], BareFront]]:
    met: list[BareFront] = []

    def make(name: str) -> BareFront:
        met.append(listening.meet(name))
        return met[-1]

    yield make
    for front in met:
        front.close()


Meet = Callable[[str], BareFront]
BEAT = wire.encode_to_front(wire.Heartbeat(turns=1), "front")


def test_frames_of_a_front_that_hung_up_are_heard_first(listening: Listening, meet: Meet) -> None:
    front = meet("front")
    front.say(wire.Abort(1))
    front.say(wire.Shutdown())
    front.close()
    listening.sockets.send("front", BEAT)  # which nobody will hear
    bodies = [wire.decode_from_front(listening.receive()[1]).body for _ in range(2)]
    assert bodies == [wire.Abort(1), wire.Shutdown()]
    assert listening.gone == []
    assert listening.sockets.receive() is None
    assert listening.gone == [("front", "is gone")]
    listening.sockets.send("front", BEAT)


def test_who_connects_again_takes_over(listening: Listening, meet: Meet) -> None:
    former, other = meet("front"), meet("other")
    again = meet("front")
    assert listening.gone == [("front", "connected again")]
    assert former.socket.recv(1) == b""
    listening.sockets.send("front", BEAT)
    assert again.hear() == wire.Heartbeat(turns=1)
    assert set(listening.sockets.ids) == {"front", "other"}
    other.say(wire.Hello())
    connection, _ = listening.receive()
    assert not listening.sockets.name(connection, "front")


def test_who_does_not_read_is_gone(
    listening: Listening, meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fronts, "MAX_UNSENT_BYTES", 1 << 20)
    deaf, reads = meet("front"), meet("reads")
    for _ in range(100):
        listening.sockets.send("front", bytes(1 << 16))
    assert listening.gone == [("front", "does not read")]
    assert listening.sockets.ids == ("reads",)
    reads.say(wire.Hello())
    listening.receive()
    deaf.close()


def test_what_the_kernel_does_not_take_at_once_is_sent_later(
    listening: Listening, meet: Meet
) -> None:
    front = meet("front")
    payload = wire.encode_to_front(wire.Starting("x" * 3_000_000, 0.5), "front")
    listening.sockets.send("front", payload)
    listening.sockets.send("front", BEAT)
    while not front.socket.recv(1 << 16).endswith(wire.framed(BEAT)[-8:]):
        listening.sockets.wait(0)
    assert listening.gone == []


def test_a_stream_of_something_else_ends(listening: Listening) -> None:
    stranger = connected(listening.path)
    stranger.sendall(b"\xff" * 64)
    while listening.sockets.bad_streams == 0:
        listening.sockets.wait(1)
        assert listening.sockets.receive() is None
    assert stranger.recv(1) == b""
    assert listening.gone == []  # it never said who it was
    stranger.close()
