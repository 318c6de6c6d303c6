"""Reading and writing files that somebody named, whatever they turn out to be."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# Far more than any plan, lock, template or hardware description takes.
LIMIT = 16 * 2**20


def read_bounded(path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of a file; of a pipe or a device too, as long as they end within `limit`.

    Raises OSError, with EFBIG for what is longer: /dev/zero has no end.
    """
    with path.open("rb") as stream:
        return _bounded(stream, path, limit)


def read_regular(path: Path, limit: int = LIMIT) -> bytes:
    """The same of a regular file alone: whoever serves cannot wait for what a pipe may bring.

    Raises OSError, with EINVAL for what is no regular file.
    """
    # Without O_NONBLOCK opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return _bounded(stream, path, limit)


def write_whole(path: Path, data: bytes) -> None:
    """Gives a file new content: all of it, or on a full disk none, and then it has its old one.

    What is no regular file, such as /dev/stdout, is written to as it is, and so is a file in a
    folder that takes no new ones. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))  # a link goes on leading there
    draft = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        path.write_bytes(data)
        return
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _bounded(stream: BinaryIO, path: Path, limit: int) -> bytes:
    raw = stream.read(limit + 1)
    if len(raw) > limit:
        reason = f"{os.strerror(errno.EFBIG)}, more than {limit // 2**20} MiB"
        raise OSError(errno.EFBIG, reason, str(path))
    return raw
