"""The image for the CPU: built twice to one digest, and run as strictly as a cluster would.

    make image-test

Bootstraps a Debian root, so it takes minutes and is no part of `make test`.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.appliance.image import Images, lacking
from tests.cli.run import REPO
from tests.ports import named_port

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

TAG = "localhost/tokenspeed:cpu"
RECIPE = "/usr/share/tokenspeed/recipes/smollm2-135m-cpu.yaml"
READY_S = 240


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    if reason := lacking():
        pytest.skip(reason)
    made = Images(tmp_path_factory.mktemp("images"))
    made.make_base()
    return made


@pytest.fixture(scope="module")
def digest(images: Images) -> str:
    return images.build(TAG, cached=False)


def test_two_builds_of_one_tree_are_equal(images: Images, digest: str) -> None:
    assert images.build(f"{TAG}-again", cached=False) == digest


def test_the_bill_names_what_is_inside(images: Images, digest: str) -> None:
    bill = json.loads(inside(images, "cat", "/usr/share/tokenspeed/sbom.cdx.json"))
    named = {component["purl"].split("@")[0] for component in bill["components"]}
    assert {"pkg:pypi/torch", "pkg:pypi/tokenspeed-appliance", "pkg:deb/debian/libc6"} <= named
    assert not any(name.endswith(("/g++", "/gcc", "pypi/pip")) for name in named)


def inside(images: Images, program: str, *arguments: str) -> str:
    return images.run("--rm", "--network=none", f"--entrypoint={program}", TAG, *arguments)


@pytest.fixture
def port() -> int:
    return named_port()


@pytest.fixture
def running(
    images: Images, digest: str, port: int, smollm2_dir: Path, tmp_path: Path
) -> Iterator[str]:
    """The container's name. A user that nobody knows, a root that cannot be written, no
    capability; weights as on a volume that was filled before."""
    state = tmp_path / "state"
    state.mkdir()
    shutil.copytree(smollm2_dir, state / "weights" / "models" / smollm2_dir.name)
    subprocess.run(["chmod", "-R", "g=u", str(state)], check=True)
    name, user = "tokenspeed-test", random.randrange(100_000, 1_000_000)
    images.run(
        "--detach", "--name", name, "--network=host", "--read-only", "--tmpfs=/tmp",
        "--tmpfs=/run/tokenspeed:mode=0770",
        "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={user}:0",
        f"--volume={state}:/var/lib/tokenspeed", TAG, RECIPE, "--set", f"serve.port={port}",
    )  # fmt: skip
    yield name
    subprocess.run(images.podman_command("rm", "--force", name), check=False, capture_output=True)


def test_it_answers_and_drains(images: Images, running: str, port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    _await_ready(images, running, url)
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": "smollm2-135m", "messages": [question], "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    images.podman("exec", running, "tokenspeed", "status")  # what the health check runs
    with pytest.raises(AssertionError, match="Read-only file system"):
        images.podman("exec", running, "sh", "-c", "touch /opt/tokenspeed/x")
    # SIGTERM, as a stop sends it: an answer that is under way is finished.
    long = body | {"max_tokens": 60, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=long, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        images.podman("kill", "--signal=TERM", running)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert images.podman("wait", running).strip() == "0"


def _await_ready(images: Images, name: str, url: str) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail(f"not ready within {READY_S} s:\n{images.podman('logs', name)}")


def test_the_recipes_are_inside(images: Images, digest: str) -> None:
    listed = inside(images, "ls", "/usr/share/tokenspeed/recipes")
    assert set(listed.split()) == {path.name for path in (REPO / "recipes").glob("*.yaml")}
