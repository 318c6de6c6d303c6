"""What is in the image: Python distributions and Debian packages, as CycloneDX 1.6 on stdout.

Run by the image's own Python while it is built. Sorted and without times or serial numbers, so
that two builds of one tree are equal.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import distributions


def python_components() -> list[dict[str, str]]:
    found = []
    for distribution in distributions():
        name, version = distribution.metadata["Name"], distribution.version
        canonical = re.sub(r"[-_.]+", "-", name).lower()
        purl = f"pkg:pypi/{canonical}@{version.replace('+', '%2B')}"
        found.append({"type": "library", "name": name, "version": version, "purl": purl})
    return found


def debian_components() -> list[dict[str, str]]:
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${Architecture}\n"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = []
    for line in listed.splitlines():
        name, version, architecture = line.split("\t")
        encoded = version.replace("+", "%2B").replace(":", "%3A").replace("~", "%7E")
        purl = f"pkg:deb/debian/{name}@{encoded}?arch={architecture}"
        found.append({"type": "library", "name": name, "version": version, "purl": purl})
    return found


def main() -> None:
    components = python_components() + debian_components()
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "tokenspeed"}},
        "components": sorted(components, key=lambda one: one["purl"]),
    }
    print(json.dumps(bill, indent=1))


if __name__ == "__main__":
    main()
