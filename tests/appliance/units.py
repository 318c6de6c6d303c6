"""Writes `systemd/` anew: python -m tests.appliance.units"""

from __future__ import annotations

from pathlib import Path

from tests.appliance.test_unit import SHIPPED
from tokenspeed.appliance.unit import shared_files

FOLDER = Path(__file__).parents[2] / "systemd"

if __name__ == "__main__":
    for name, text in shared_files().items():
        (FOLDER / SHIPPED.get(name, Path(name).name)).write_text(text)
