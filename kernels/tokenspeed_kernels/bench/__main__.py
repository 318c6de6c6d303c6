"""Times kernels on the device that is here: a CUDA device, else one core of the CPU.

What it prints is the time of each case, the time at the device's ceiling (the floor), and how much
of that was reached. Data is cold, but for sampling, whose logits lie in the cache.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tokenspeed_kernels.bench.parts import NAMES, Part, wanted
from tokenspeed_kernels.bench.result import Result

NOTHING_TO_MEASURE = 69


def main() -> int:
    """Returns the exit code: 69 where nothing that was asked for can be measured here."""
    options = _parse()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    parts = wanted(kind, options.only, options.op)
    if not parts or (options.tune and kind == "cpu"):
        asked = options.op or options.only or "--tune"
        print(f"nothing here measures {asked} on {kind}", file=sys.stderr)
        return NOTHING_TO_MEASURE
    device = _device(kind)
    print(f"on {device['device']}")
    results = []
    for result in _measured(parts, options.tune):
        results.append(result)
        print(result, flush=True)
        if options.out is not None:
            _write(options, device, results)
    return 0


def _measured(parts: tuple[Part, ...], tune: bool) -> Iterator[Result]:
    for part in parts:
        module: Any = importlib.import_module(f"tokenspeed_kernels.bench.{part.module}")
        if part.kind == "cpu":
            yield from module.run(part.name)
        else:
            yield from module.tune() if tune else module.run()


def _device(kind: str) -> dict[str, Any]:
    """What the figures were taken on."""
    if kind == "cpu":
        cpu: Any = importlib.import_module("tokenspeed_kernels.bench.cpu")
        name, device = cpu.this_cpu()
        features = sorted(device.features & {"avx2", "avx512f", "avx512_vnni"})
        facts = {"arch": device.arch, "features": features, "threads": 1}
        return {"device": name, **facts, "load_average": os.getloadavg()[0]}
    measure: Any = importlib.import_module("tokenspeed_kernels.bench.gpu_measure")
    return {
        "device": torch.cuda.get_device_name(),
        "triton": importlib.import_module("triton").__version__,
        "ceilings": {"read GB/s": measure.READ_GBS, "copy GB/s": measure.COPY_GBS},
    }


def _write(options: argparse.Namespace, device: dict[str, Any], results: list[Result]) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    suffix = "-tuning" if options.tune else ""
    name = "-".join(device["device"].lower().split())
    report = {
        **device,
        "commit": options.commit,
        "torch": torch.__version__,
        "results": [asdict(result) for result in results],
    }
    path = options.out / f"{name}{suffix}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tokenspeed kernels bench", description=__doc__)
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--op")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
