"""Standard input, output and error as everything else may count on them: open, and able to take
any text.

A shell can start a process with some of them closed (`2>&-`). The next file opened then gets
their number, and what is written to it, or closed with it, is not what was meant; Python's own
objects are None. A locale can also name an encoding without the letters that we print.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

# One character each, so that columns stay aligned where an encoding lacks the original.
_PLAIN = dict.fromkeys("█▉▊▋▌▍▎▏", "#") | {"…": "~"}
_ERRORS = "tokenspeed.plain"
_MODES = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def prepare() -> None:
    """To be called first thing in a process: before it opens any file of its own."""
    for descriptor, (name, mode) in enumerate(_MODES):
        _open_if_closed(descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    codecs.register_error(_ERRORS, _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ERRORS)


def abandon_unwritable() -> None:
    """Lets output that cannot be written lead nowhere: what it still holds would fail again when
    the interpreter flushes it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _open_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        # The lowest free number, which is this one: those below it are open by now.
        opened = os.open(os.devnull, os.O_RDWR)
        assert opened == descriptor, "descriptors are opened from 0 on"
        os.set_inheritable(opened, True)  # else the next program has it closed again


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Codec error handler: a look-alike in ASCII, a byte of a file's name as it was, else `?`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = error.object[error.start]
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00]), error.start + 1
    return _PLAIN.get(letter, "?"), error.start + 1
