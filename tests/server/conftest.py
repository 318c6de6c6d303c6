"""Live servers, one worker each, shared by the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs import Chain, Oracle, build_chain, build_rand
from tests.rigs.plans import tiny_plan
from tests.server import agent as agent_model
from tests.server.live import LiveServer, serving

BLOCK = 16

# Pieces of the scripts: what the model says, one token per piece.
SCRIPTS: dict[str, list[str | bytes]] = {
    "hello": ["Hel", "lo", " wor", "ld"],
    "llama": [b"\xf0", b"\x9f", b"\xa6", b"\x99"],
    "ni": [b"\xe4\xbd", b"\xa0"],
    "cut": ["a", b"\xf0\x9f"],
    "mark": [b"\xef", b"\xbf", b"\xbd"],
    "tail": [b"\xa6\x99", "z"],
    "stop": ["ab", "cST", "OP", "def"],
    "half": ["ab", "ST"],
    "lines": ["a\n\nb", "\r", "\u2028", "\u2029", "\x85", 'end"'],
    "long": ["x", "y"],
}


@pytest.fixture(scope="session")
def rand_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_rand(tmp_path_factory.mktemp("rand") / "model", "llama", seed=5)


@pytest.fixture(scope="session")
def oracle(rand_folder: Path) -> Oracle:
    return Oracle(rand_folder)


@pytest.fixture(scope="session")
def rand_live(rand_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    plan = tiny_plan(rand_folder, max_running=16, max_step_tokens=64, max_model_len=512)
    with serving(plan, rand_folder, tmp_path_factory.mktemp("run")) as server:
        yield server


@pytest.fixture
def rand(rand_live: LiveServer) -> Iterator[LiveServer]:
    """R-RAND. After the test: [IDLE] and [CANARY]."""
    yield rand_live
    rand_live.assert_idle()
    assert canary(rand_live) == CANARY.setdefault(rand_live.port, canary(rand_live))


CANARY: dict[int, str] = {}


def canary(server: LiveServer) -> str:
    return str(server.complete("A fixed request", max_tokens=12)["choices"][0]["text"])


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return build_chain(tmp_path_factory.mktemp("chain") / "model", SCRIPTS, loops=("long",))


@pytest.fixture(scope="session")
def chain_live(
    chain_model: Chain, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    plan = tiny_plan(chain_model.folder, max_running=16, in_flight_depth=1)
    with serving(plan, chain_model.folder, tmp_path_factory.mktemp("run")) as server:
        yield server


@pytest.fixture
def chain(chain_live: LiveServer) -> Iterator[LiveServer]:
    """R-CHAIN: the prompt `<|go:NAME|>` plays script NAME. After the test: [IDLE]."""
    yield chain_live
    chain_live.assert_idle()


@pytest.fixture(scope="session")
def agent_live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    chain = build_chain(
        tmp_path_factory.mktemp("agent") / "model",
        agent_model.SCRIPTS,
        starts=agent_model.STARTS,
        template=agent_model.TEMPLATE,
    )
    plan = tiny_plan(chain.folder, max_running=16, in_flight_depth=1)
    with serving(plan, chain.folder, tmp_path_factory.mktemp("run")) as server:
        yield server


@pytest.fixture
def agent(agent_live: LiveServer) -> Iterator[LiveServer]:
    """The scripts of `tests.server.agent`. After the test: [IDLE]."""
    yield agent_live
    agent_live.assert_idle()


def go(name: str) -> str:
    return f"<|go:{name}|>"
