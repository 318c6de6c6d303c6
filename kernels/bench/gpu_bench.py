"""GPU kernels: time, rate and fraction of the ceiling, on cold data (sampling: in L2).

python kernels/bench/gpu_bench.py [--tune] [--only PART] [--out FOLDER] [--commit ID]
Writes <folder>/<device>.json; prints a table last.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import gpu_attention
import gpu_chain
import gpu_latent
import gpu_moe
import gpu_ordered
import gpu_others
import gpu_products
import torch
import triton
from gpu_measure import COPY_GBS, READ_GBS, Result

PARTS = {
    "attention": gpu_attention,
    "latent": gpu_latent,
    "moe": gpu_moe,
    "products": gpu_products,
    "chain": gpu_chain,
    "others": gpu_others,
    "ordered": gpu_ordered,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="every variant, not only the chosen")
    parser.add_argument("--only", choices=[*PARTS])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name().replace(" ", "-").lower()
    results: list[Result] = []
    begin = time.monotonic()
    for part, module in PARTS.items():
        if arguments.only in (None, part):
            for result in module.tune() if arguments.tune else module.run():
                results.append(result)
                print(f"{time.monotonic() - begin:6.1f} s {result}", flush=True)
                _write(arguments, name, results)
    print("\n".join(str(result) for result in results))


def _write(arguments: argparse.Namespace, name: str, results: list[Result]) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    suffix = "-tuning" if arguments.tune else ""
    report = {
        "device": torch.cuda.get_device_name(),
        "commit": arguments.commit,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "ceilings": {"read GB/s": READ_GBS, "copy GB/s": COPY_GBS},
        "results": [result.row() for result in results],
    }
    path = arguments.out / f"{name}{suffix}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
