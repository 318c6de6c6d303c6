"""Random faults under load: python -m tests.appliance.chaos [--rounds 200] [--seed N]."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.appliance.chaos.rounds import run, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.appliance.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument(
        "--libfaketime", type=Path, help="that library, to turn the clock instead of ours"
    )
    parser.add_argument("--report", type=Path, help="where the table goes as well")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as scratch:
        done = run(Path(scratch), args.seed, args.rounds, args.only, args.libfaketime)
    print(f"\n{table(done)}")
    if args.report:
        args.report.write_text(table(done) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
