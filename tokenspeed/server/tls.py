"""TLS from files that may be renewed while the server runs."""

from __future__ import annotations

import errno
import logging
import ssl
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenspeed import env
from tokenspeed.errors import Problem, UnavailableError

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
_LIMIT = 2**20  # bytes of a file


class Tls:
    """A certificate with its key. `context` serves new connections with what was read last."""

    def __init__(
        self, certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises OSError or ssl.SSLError when the two cannot be used."""
        self._files = (certificate, key)
        self._clock = clock
        self._looked = clock()
        self._stamps = self._stamp()
        self.context = self._load()

    def refresh(self) -> None:
        """Reads files again that changed, looking every few seconds at most."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            stamps = self._stamp()
            if stamps == self._stamps:
                return
            self._load()  # into a context of its own: a pair that does not match spoils one
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            log.error("the certificate stays as it was: %s", error)
            return
        self._stamps = stamps
        log.info("the certificate was read again")

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files)
        return context

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        stats = [file.stat() for file in self._files]
        for file, found in zip(self._files, stats, strict=True):
            # A pipe or a device would keep whoever reads it from all else.
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LIMIT:
                raise OSError(errno.EINVAL, "not a regular file of 1 MiB at most", str(file))
        return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in stats)


def read_tls(references: Sequence[str]) -> Tls | None:
    """Of the references of a plan (certificate and key, or none), `file:` or `credential:`.

    Raises UnavailableError when they lead to no usable pair.
    """
    if not references:
        return None
    try:
        certificate, key = (env.secret_file(reference) for reference in references)
        assert certificate is not None and key is not None, "a plan refers to files"
        return Tls(certificate, key)
    except (OSError, LookupError) as error:
        why = "CREDENTIALS_DIRECTORY is not set" if isinstance(error, LookupError) else str(error)
        raise UnavailableError(
            Problem(
                code="TS-S242",
                path="serve.tls",
                message=f"{' and '.join(references)} cannot be used for TLS: {why}",
                hint="both in PEM; the certificate first, then those that signed it",
            )
        ) from error
