"""Who computes what in the next step: the Python face of the C++ scheduler core.

The contract of every name is in `_core.pyi`; how it works is in `README.md` beside this file.
"""

from tokenspeed.scheduler._core import (
    Deltas,
    Guard,
    Judgement,
    PeerDelivered,
    PeerGone,
    PeerProgress,
    PeerReady,
    Scheduler,
    SchedulerConfig,
    Stats,
    Step,
    SubmitResult,
    Tier,
    TransferDone,
    TransferLost,
    Transfers,
    Word,
)

__all__ = [
    "Deltas",
    "Guard",
    "Judgement",
    "PeerDelivered",
    "PeerGone",
    "PeerProgress",
    "PeerReady",
    "Scheduler",
    "SchedulerConfig",
    "Stats",
    "Step",
    "SubmitResult",
    "Tier",
    "TransferDone",
    "TransferLost",
    "Transfers",
    "Word",
]
