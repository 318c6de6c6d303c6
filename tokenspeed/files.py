"""Reading files that somebody named, whatever they turn out to be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# Far more than any plan, lock, template or hardware description takes.
LIMIT = 16 * 2**20


def read_bounded(path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of a file; of a pipe or a device too, as long as they end within `limit`.

    Raises OSError, with EFBIG for what is longer: /dev/zero has no end.
    """
    with path.open("rb") as stream:
        raw = stream.read(limit + 1)
    if len(raw) > limit:
        reason = f"{os.strerror(errno.EFBIG)}, more than {limit // 2**20} MiB"
        raise OSError(errno.EFBIG, reason, str(path))
    return raw
