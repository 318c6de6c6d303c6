"""Asks a running server everything that its OpenAPI document allows, and much that it does not.

    python -m tests.server.fuzz http://127.0.0.1:8000 --requests 5000 --seed 1

Exit code 1 when an answer is a 500, a status or content type that is not described, or a body that
its schema refuses. API key, if there is one: --header "Authorization: Bearer KEY".
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

import httpx

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance",
)  # fmt: skip


def fuzz(url: str, requests: int, seed: int, headers: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and output. About so many requests, spread over the operations."""
    document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    operations = sum(len(methods) for methods in document["paths"].values())
    with tempfile.TemporaryDirectory() as scratch:  # for what the fuzzer keeps of its runs
        done = _run(url, max(1, requests // operations), seed, headers, scratch)
    return done.returncode, done.stdout + done.stderr


def _run(
    url: str, examples: int, seed: int, headers: tuple[str, ...], scratch: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("run", f"{url}/openapi.json", "--phases", "fuzzing", "--no-color"),
            *("--max-examples", str(examples), "--seed", str(seed)),
            *("--checks", ",".join(CHECKS), "--suppress-health-check", "all"),
            *("--request-timeout", "60", "--generation-database", "none"),
            *(word for header in headers for word in ("--header", header)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=scratch,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--header", action="append", default=[])
    args = parser.parse_args()
    code, output = fuzz(args.url.rstrip("/"), args.requests, args.seed, tuple(args.header))
    print(output)
    return code


if __name__ == "__main__":
    sys.exit(main())
