"""The service in this process: what a front hears while a model loads, and when a step fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.rigs.drive import GREEDY
from tests.rigs.fronts import BareFront
from tests.rigs.plans import tiny_plan
from tests.worker.conftest import Model
from tokenspeed import wire
from tokenspeed.errors import ExitCode
from tokenspeed.request import Delta, FinishReason, Request
from tokenspeed.worker.build import build
from tokenspeed.worker.profile import Profiler
from tokenspeed.worker.service import Service


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"{tmp_path}/worker.sock"


@pytest.fixture
def service(endpoint: str) -> Iterator[Service]:
    made = Service(endpoint)
    yield made
    made.close()


class Front(BareFront):
    """Speaks first and listens afterwards."""

    def submit(self, request_id: int) -> None:
        tokens = np.arange(9, dtype="<i4").tobytes()
        request = Request(request_id=request_id, tokens=tokens, max_tokens=5, sampling=GREEDY)
        self.say(wire.Submit(request=request))

    def deltas(self, count: int) -> list[Delta]:
        heard: list[Delta] = []
        while len(heard) < count:
            body = self.hear()
            if isinstance(body, wire.Outputs):
                heard.extend(body.deltas)
        return heard


@pytest.fixture
def front(service: Service, endpoint: str) -> Iterator[Front]:
    made = Front("front", endpoint)
    yield made
    made.close()


def load_until(service: Service, front: Front) -> wire.WorkerMessage:
    """Reports progress, as loading does, until the front hears something."""
    deadline = time.monotonic() + 30
    while not front.hears():
        assert time.monotonic() < deadline
        service.starting("loading weights", 0.5)
    return front.hear()


def test_hello_during_loading_is_answered_with_the_stage(service: Service, front: Front) -> None:
    front.say(wire.Hello())
    assert load_until(service, front) == wire.Starting(stage="loading weights", fraction=0.5)


def test_progress_is_sent_a_few_times_a_second(service: Service, front: Front) -> None:
    front.say(wire.Hello())
    load_until(service, front)
    for step in range(1000):
        service.starting("loading weights", step / 1000)
    front.say(wire.AskStats(query_id=1))
    heard = [load_until(service, front)]
    while not isinstance(heard[-1], wire.StatsAnswer):
        heard.append(load_until(service, front))
    assert len(heard) < 100


def test_request_during_loading_ends_with_the_reason(service: Service, front: Front) -> None:
    front.submit(3)
    answer = load_until(service, front)
    assert isinstance(answer, wire.Outputs)
    (delta,) = answer.deltas
    assert (delta.request_id, delta.finish_reason) == (3, FinishReason.ERROR)
    assert "loading" in delta.error


def test_shutdown_during_loading_exits(service: Service, front: Front) -> None:
    front.say(wire.Shutdown())
    with pytest.raises(SystemExit) as ended:
        load_until(service, front)
    assert ended.value.code == ExitCode.OK


def test_failed_step_ends_its_requests_and_is_raised(
    service: Service, front: Front, llama: Model
) -> None:
    built = build(tiny_plan(llama.folder), llama.folder, service.starting)
    # A stream that takes no more work is as broken as a step can be.
    built.loop.close()
    front.submit(7)
    with pytest.raises(RuntimeError, match="after shutdown"):
        service.serve(built.loop, wire.Ready(capacity=built.capacity), Profiler(llama.folder))
    (delta,) = front.deltas(1)
    assert (delta.request_id, delta.finish_reason) == (7, FinishReason.ERROR)
    assert "the engine failed: RuntimeError" in delta.error
