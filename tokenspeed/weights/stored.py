"""Where the tensors of a checkpoint lie, whatever the container."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tokenspeed.checkpoint.gguf import SUFFIX, read_gguf
from tokenspeed.checkpoint.safetensors import TensorEntry, read_index
from tokenspeed.checkpoint.scaled import DTYPES, gather
from tokenspeed.errors import CheckpointError, Problem, Where


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file. `format` is a dtype name, or that of the numbers that it packs, and
    `shape` that of what it stands for. `scales` is the tensor that scales it, where there is one,
    `global_scale` that of the whole and whether it `divides`; `fault` what is wrong with them, ""
    for nothing."""

    path: Path
    format: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    scales: Stored | None = None
    fault: str = ""
    global_scale: Stored | None = None
    divides: bool = False

    def read(self) -> torch.Tensor:
        """The bytes of the tensor, uint8 [bytes], in memory of their own.

        Raises CheckpointError where the file cannot be read, or ends before the tensor does.
        """
        data = torch.empty(self.bytes, dtype=torch.uint8)
        file = open_weights(self.path)
        try:
            self.read_into(data.numpy().data, file, 0)
        finally:
            os.close(file)
        return data

    def read_into(self, view: memoryview, file: int, first: int) -> None:
        """Fills `view` with the tensor's bytes from `first` on; `file` is `path`, opened.

        Raises CheckpointError where the file cannot be read, or ends before.
        """
        done = 0
        while done < len(view):
            try:
                count = os.preadv(file, [view[done:]], self.offset + first + done)
            except OSError as error:
                raise _unreadable(self.path, error) from error
            if not count:
                raise self._too_short(first + done)
            done += count

    def _too_short(self, done: int) -> CheckpointError:
        end = self.offset + self.bytes
        return CheckpointError(
            Problem(
                code="TS-W020",
                message=f"{self.path.name}: expected {end} bytes, found {self.offset + done}",
                where=Where(str(self.path)),
                hint="the file changed while it was read; fetch it again",
            )
        )


def open_weights(path: Path) -> int:
    """A descriptor. Raises CheckpointError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-W025",
            message=f"{path.name} cannot be read: {error.strerror}",
            where=Where(str(path)),
            hint="see `dmesg` where the disk may be at fault; fetch the file again",
        )
    )


def stored_tensors(model_dir: Path, container: str) -> dict[str, Stored]:
    """Every tensor of the model folder, after the headers were proved whole.

    `container` is "gguf" or "safetensors". Raises CheckpointError.
    """
    if container == "gguf":
        path = _only_gguf(model_dir)
        return {
            name: Stored(path, tensor.format, tensor.shape, tensor.offset, tensor.bytes)
            for name, tensor in read_gguf(path).tensors.items()
        }
    entries = read_index(model_dir).tensors
    plain = {name: _plain(model_dir, entry) for name, entry in entries.items()}
    gathered = gather({name: (entry.dtype, entry.shape) for name, entry in entries.items()})
    return {
        name: replace(
            plain[one.data],
            format=one.format,
            shape=one.shape,
            scales=None if one.scale is None else plain[one.scale],
            fault=one.fault,
            global_scale=None if one.global_scale is None else plain[one.global_scale],
            divides=one.divides,
        )
        for name, one in gathered.items()
    }


def _plain(model_dir: Path, entry: TensorEntry) -> Stored:
    return Stored(
        path=model_dir / entry.file,
        format=DTYPES.get(entry.dtype, entry.dtype),
        shape=entry.shape,
        offset=entry.begin,
        bytes=entry.end - entry.begin,
    )


def _only_gguf(model_dir: Path) -> Path:
    if model_dir.is_file():
        return model_dir
    found = sorted(model_dir.glob(f"*{SUFFIX}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise CheckpointError(
        Problem(
            code="TS-W002",
            message=f"the plan needs one .gguf file here, there is {names}",
            where=Where(str(model_dir)),
            hint="keep exactly one .gguf file in the model folder",
        )
    )
