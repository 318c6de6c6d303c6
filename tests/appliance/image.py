"""An image built with buildah from a Debian root of our own, and run with podman.

No registry is needed: the base comes from Debian's packages. Both tools are told one storage, and
what this machine's pip is told (its configuration, and folders that it names) is told to the build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cli.run import REPO

BASE = "localhost/debian:bookworm"
_TOOLS = ("buildah", "podman", "mmdebstrap", "unshare", "crun")


def lacking() -> str:
    """What keeps an image from being built here, "" if nothing."""
    if os.geteuid() != 0:
        return "an image of Debian is bootstrapped by root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Images:
    """A store of images in `folder`."""

    folder: Path

    def buildah(self, *arguments: str) -> str:
        return _run(["buildah", *self._store(), *arguments])

    def podman(self, *arguments: str) -> str:
        return _run(self.podman_command(*arguments))

    def run(self, *arguments: str) -> str:
        """`podman run` with limits that need no privilege to set, and no timer of systemd's."""
        limits = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000")
        return self.podman("run", "--pull=never", "--no-healthcheck", *limits, *arguments)

    def podman_command(self, *arguments: str) -> list[str]:
        """crun takes no mix of cgroup versions: where one is mounted, not in its sight."""
        command = [
            "podman", *self._store(), "--cgroup-manager=cgroupfs", "--events-backend=file",
            "--runtime=crun", *arguments,
        ]  # fmt: skip
        hidden = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
        return ["unshare", "--mount", "sh", "-c", hidden, "sh", *command]

    def make_base(self) -> None:
        root = self.folder / "base.tar"
        _run(
            ["mmdebstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root)]
        )
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, str(root), "/")
        self.buildah("config", "--cmd", "/bin/bash", container)
        self.buildah("commit", "--quiet", "--timestamp", "0", "--rm", container, BASE)

    def build(self, tag: str, *, cached: bool) -> str:
        """Builds the checkout's image for the CPU and returns its digest."""
        settings = self.folder / "pip.conf"
        settings.write_text(_pip_settings())
        self.buildah(
            "bud", "--isolation", "chroot", "--pull-never", "--format", "oci",
            "--timestamp", "0", "--layers" if cached else "--no-cache",
            "--build-arg", f"BASE={BASE}", "--secret", f"id=pip,src={settings}",
            *(f"--volume={path}:{path}:ro" for path in _pip_folders(settings.read_text())),
            "--file", str(REPO / "containers/Containerfile"), "--tag", tag, str(REPO),
        )  # fmt: skip
        (described,) = json.loads(self.buildah("images", "--json", tag))
        digest: str = described["digest"]
        return digest

    def _store(self) -> list[str]:
        return [
            "--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run"),
            "--storage-driver", "overlay",
        ]  # fmt: skip


def _pip_settings() -> str:
    """This machine's pip configuration as one file: `global.name='value'` lines, read back."""
    listed = _run(["python3", "-m", "pip", "config", "list"])
    lines = []
    for line in listed.splitlines():
        found = re.fullmatch(r"(global|:env:)\.([a-z-]+)='(.*)'", line)
        if found and found[2] != "disable-pip-version-check":
            lines.append(f"{found[2]} = {found[3]}")
    return "[global]\n" + "\n".join(dict.fromkeys(lines)) + "\n"


def _pip_folders(settings: str) -> list[str]:
    """The folders of this machine that the configuration names. An index's pages lie in `simple`
    and point to files beside it."""
    named = (Path(path) for path in re.findall(r"(?:file://)?(/\S+)", settings))
    present = (path for path in named if path.exists())
    folders = {path if path.is_dir() and path.name != "simple" else path.parent for path in present}
    return sorted(map(str, folders))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout
