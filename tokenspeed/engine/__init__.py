"""The front's handle on the workers: submit, stream, abort. Torch-free.

engine.generate(request) -> Answer (hands over Deltas)
"""

from __future__ import annotations

from tokenspeed.engine.answer import Answer, Hold
from tokenspeed.engine.engine import Engine
from tokenspeed.engine.state import Down, EngineUnavailable, Loading, Ready, State

__all__ = ["Answer", "Down", "Engine", "EngineUnavailable", "Hold", "Loading", "Ready", "State"]
