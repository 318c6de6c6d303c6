"""HTTPS and a listener for metrics, on a whole instance; keys and certificates change under it."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.appliance.live import Front, Home, tiny_model, until
from tests.ports import named_port
from tests.server.test_key_limits import Clock
from tokenspeed.errors import UnavailableError
from tokenspeed.server.tls import LOOK_SECONDS, Tls, read_tls

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="makes certificates")


def certificate(folder: Path, name: str) -> None:
    """folder/cert.pem and folder/key.pem for localhost, under that common name."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip


def served_name(port: int, folder: Path) -> str:
    """The common name of the certificate that is served, checked against the one in the folder."""
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        found = wrapped.getpeercert()
    assert found is not None
    return str(dict(pair for part in found["subject"] for pair in part)["commonName"])


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Path, int]]:
    folder = tmp_path_factory.mktemp("secrets")
    certificate(folder, "first")
    (folder / "keys").write_text("all\nwatch scopes=metrics\n")
    metrics = named_port()
    with Home() as home:
        options = {
            "serve.tls": f"[file:{folder}/cert.pem, file:{folder}/key.pem]",
            "serve.api_keys": f"[file:{folder}/keys]",
            "observability.metrics_port": metrics,
            "serve.fronts": 2,
        }
        sets = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        model = tiny_model(folder / "model")
        yield home.up(home.recipe("secure", model), *sets).wait_ready(), folder, metrics


def ask(url: str, key: str, verify: Path | bool = True) -> httpx.Response:
    context = ssl.create_default_context(cafile=str(verify)) if verify is not True else True
    with httpx.Client(verify=context, trust_env=False) as client:
        return client.get(url, headers={"x-api-key": key})


@needs_openssl
def test_https_and_metrics_apart(secure: tuple[Front, Path, int]) -> None:
    front, folder, metrics = secure
    assert front.url.startswith("https://")
    cert = folder / "cert.pem"
    assert ask(f"{front.url}/v1/models", "all", cert).json()["data"][0]["id"] == "tiny"
    assert ask(f"{front.url}/v1/models", "watch", cert).status_code == 403
    assert ask(f"{front.url}/metrics", "watch", cert).status_code == 404
    apart = f"http://127.0.0.1:{metrics}"
    assert "tokenspeed_ready 1" in ask(f"{apart}/metrics", "watch").text
    assert ask(f"{apart}/metrics", "none").status_code == 401
    assert ask(f"{apart}/v1/models", "all").status_code == 404
    status = front.home.run("status", "secure")  # through its own socket
    assert status.returncode == 0
    assert "2 of 2 answer" in status.stdout


@needs_openssl
def test_a_certificate_is_renewed_without_a_restart(secure: tuple[Front, Path, int]) -> None:
    front, folder, _ = secure
    port = int(front.url.rsplit(":", 1)[1])
    assert served_name(port, folder) == "first"
    before = (folder / "cert.pem").read_bytes()
    (folder / "before.pem").write_bytes(before)
    certificate(folder, "second")

    def renewed() -> bool:
        with httpx.Client(verify=False, trust_env=False) as client:  # whichever it is by now
            client.get(f"{front.url}/livez")
        try:
            return served_name(port, folder) == "second"
        except ssl.SSLError:
            return False

    until(renewed, "the new certificate is served")


@needs_openssl
def test_a_broken_renewal_changes_nothing(tmp_path: Path) -> None:
    certificate(tmp_path, "good")
    clock = Clock()
    tls = Tls(tmp_path / "cert.pem", tmp_path / "key.pem", clock)
    loaded = tls.context.cert_store_stats()
    other = tmp_path / "other"
    other.mkdir()
    certificate(other, "other")
    (tmp_path / "key.pem").write_bytes((other / "key.pem").read_bytes())  # of another certificate
    clock.now += LOOK_SECONDS
    tls.refresh()
    assert tls.context.cert_store_stats() == loaded
    (tmp_path / "key.pem").unlink()
    clock.now += LOOK_SECONDS
    tls.refresh()
    os.mkfifo(tmp_path / "key.pem")  # would be waited for
    clock.now += LOOK_SECONDS
    tls.refresh()
    assert tls.context.cert_store_stats() == loaded


def test_files_that_are_no_pair_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    for reference in (f"file:{tmp_path}/cert.pem", "file:/no/such/file", "credential:x"):
        with pytest.raises(UnavailableError) as caught:
            read_tls((reference, reference))
        assert caught.value.problems[0].code == "TS-S242"
    assert read_tls(()) is None
