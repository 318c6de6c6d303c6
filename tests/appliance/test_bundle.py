"""A bundle goes to a machine without a network, and every change to it is found out."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.appliance.live import PATIENCE, TOKENSPEED, Home
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import parse
from tokenspeed.cli import main
from tokenspeed.plan import ModelFile

SOURCE = "hf:org/tiny"
RECIPE = """\
extends: base.yaml
name: demo
limits: {threads: 1}
serve: {port: 0}
"""
BASE = f"""\
version: 1
name: base
device: cpu
model: {{source: '{SOURCE}', served_names: [tiny]}}
kv: {{blocks: 64}}
"""


@pytest.fixture(scope="module")
def packed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model that is in the store of a machine with a network."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "demo.yaml").write_text(RECIPE)
    (folder / "base.yaml").write_text(BASE)
    (folder / "wheels").mkdir()
    (folder / "wheels/some-1-py3-none-any.whl").write_bytes(b"PK")
    with Home() as home:
        fill(Store(home.data_root / "weights"), model)
        file = folder / "demo.bundle.tar"
        options = ("--offline", "--wheels", str(folder / "wheels"), "-o", str(file))
        done = home.run("bundle", str(folder / "demo.yaml"), *options)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in folder.iterdir()) == [
            "base.yaml", "demo.bundle.tar", "demo.yaml", "wheels",
        ]  # fmt: skip
    return file


def fill(store: Store, model: Path) -> None:
    files = [path for path in sorted(model.iterdir()) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    with store.intake(parse(SOURCE), (), size, Watch()) as keep:
        for path in files:
            file = ModelFile(name=path.name, bytes=path.stat().st_size, sha256=None)
            with path.open("rb") as stream:
                keep(path.name, file, stream)


@pytest.fixture
def home() -> Home:
    with Home() as home:
        # Whoever asked anybody would be told "no" at once.
        home.environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
        yield home


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], str]:
    """What is said of a bundle that is refused; nothing of it is left."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))

    def unpack(file: Path) -> str:
        assert main(["unbundle", str(file), "--to", str(tmp_path / "demo")]) in (66, 78)
        assert not (tmp_path / "demo").exists(), "a recipe of a bundle that was refused"
        weights = tmp_path / "d/tokenspeed/weights"
        assert not [*weights.glob("models/*"), *weights.glob("partial/*/*")]
        return capsys.readouterr().err

    return unpack


def test_it_boots_in_an_empty_home_without_a_network(home: Home, packed: Path) -> None:
    to = home.path / "demo"
    done = home.run("unbundle", str(packed), "--to", str(to), "--wheels", str(to / "wheels"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"next: tokenspeed up --offline {to / 'demo.yaml'}"
    assert (to / "base.yaml").read_text() == BASE
    assert (to / "wheels/some-1-py3-none-any.whl").read_bytes() == b"PK"
    front = home.up(to / "demo.yaml", "--offline", "--locked").wait_ready()
    assert front.ask()
    assert front.stop(signal.SIGTERM) == 0
    # What was unpacked is held by its lock, and unpacking it once more changes nothing.
    assert "nothing is garbage" in home.run("gc").stdout
    again = home.run("unbundle", str(packed), "--to", str(to))
    assert again.returncode == 0, again.stderr
    (to / "base.yaml").write_text("version: 1\n")
    kept = home.run("unbundle", str(packed), "--to", str(to))
    assert (kept.returncode, "TS-C008" in kept.stderr) == (64, True)


def test_a_model_of_a_folder_lies_beside_its_recipe(home: Home, model: Path) -> None:
    recipe = home.recipe("demo", model)
    file = home.path / "demo.tar"
    done = home.run("bundle", str(recipe), "--no-wheels", "-o", str(file))
    assert done.returncode == 0, done.stderr
    to = home.path / "there"
    assert home.run("unbundle", str(file), "--to", str(to)).returncode == 0
    assert (to / "model/model.safetensors").read_bytes() == (
        model / "model.safetensors"
    ).read_bytes()
    assert home.run("check", str(to / "demo.yaml")).returncode == 0
    assert "path:" in home.run("plan", str(to / "demo.yaml")).stdout


@pytest.mark.parametrize("keep", [0, 700, 3_000, 60_000, 0.5, 0.9])
def test_a_file_that_is_cut_says_where(
    refused: Callable[[Path], str], packed: Path, tmp_path: Path, keep: float
) -> None:
    data = packed.read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    said = refused(cut)
    assert "TS-S280" in said if keep < 1000 and isinstance(keep, int) else "TS-S282" in said


def changed(packed: Path, to: Path, change: Callable[[tarfile.TarInfo, bytearray], None]) -> None:
    """The bundle once more, with `change` made to each of its members."""
    with tarfile.open(packed) as old, tarfile.open(to, "w") as new:
        for info in old:
            data = bytearray(old.extractfile(info).read())
            change(info, data)
            info.size = len(data) if info.isreg() else 0
            new.addfile(info, io.BytesIO(bytes(data)))


def _flip_weights(info: tarfile.TarInfo, data: bytearray) -> None:
    if info.name.startswith("weights/"):
        data[-1] ^= 1


def _climb(info: tarfile.TarInfo, data: bytearray) -> None:
    if info.name == "recipe/base.yaml":
        info.name = "recipe/../../../escaped"
    if info.name == "bundle.json":
        data[:] = data.replace(b"recipe/base.yaml", b"recipe/../../../escaped")


def _climb_unannounced(info: tarfile.TarInfo, data: bytearray) -> None:
    if info.name == "recipe/base.yaml":
        info.name = "../escaped"


def _link(info: tarfile.TarInfo, data: bytearray) -> None:
    if info.name == "weights/config.json":
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"


def _absolute(info: tarfile.TarInfo, data: bytearray) -> None:
    if info.name == "bundle.json":
        manifest = json.loads(data)
        manifest["recipe"] = "/tmp/escaped.yaml"
        data[:] = json.dumps(manifest).encode()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_flip_weights, "TS-S113"),  # the store checks by itself
        (_climb, "TS-S280"),
        (_climb_unannounced, "TS-S284"),
        (_link, "TS-S284"),
        (_absolute, "TS-S280"),
    ],
)
def test_a_bundle_that_was_changed_is_refused(
    refused: Callable[[Path], str],
    packed: Path,
    tmp_path: Path,
    change: Callable[[tarfile.TarInfo, bytearray], None],
    code: str,
) -> None:
    bad = tmp_path / "bad.tar"
    changed(packed, bad, change)
    assert code in refused(bad)
    assert not list(tmp_path.parent.rglob("escaped*"))


def test_what_is_no_bundle_is_said_so(refused: Callable[[Path], str], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(BASE)
    assert "TS-S280" in refused(tmp_path / "recipe.yaml")
    assert "TS-S280" in refused(tmp_path / "missing")


def test_what_did_not_fit_leaves_nothing_in_the_way(home: Home, model: Path) -> None:
    recipe = home.recipe("demo", model)
    packed = home.path / "demo.tar"
    assert home.run("bundle", str(recipe), "-o", str(packed), "--no-wheels").returncode == 0
    to = home.path / "there"
    command = ["unbundle", str(packed), "--to", str(to)]
    full = subprocess.run(
        ["prlimit", "--fsize=1000", *TOKENSPEED, *command],
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (full.returncode, "TS-C004" in full.stderr) == (74, True), full.stderr
    # No beginning of a file, and nothing that the next try would take for somebody's own.
    files = {path for path in to.rglob("*") if path.is_file()}
    assert all(path.read_bytes() == (model / path.name).read_bytes() for path in files)
    assert home.run(*command).returncode == 0
