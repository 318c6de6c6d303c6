"""Which generation runs next in this process, and what becomes of the one before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tokenspeed.appliance.generations import Generations
from tokenspeed.appliance.order import Order
from tokenspeed.errors import TokenspeedError

log = logging.getLogger(__name__)


class Rollout:
    """`order_of` makes an order of the recipe of a generation, and may raise TokenspeedError."""

    def __init__(self, generations: Generations, order_of: Callable[[Path], Order]) -> None:
        self._generations = generations
        self._order_of = order_of
        self.generation = 0

    def next(self) -> Order:
        """What to run now. Raises what is wrong with it where nothing can take its place."""
        while True:
            self.generation = self._generations.begin()
            try:
                return self._order_of(self._generations.recipe(self.generation))
            except TokenspeedError as error:
                self.failed(error)

    def selected(self) -> Order:
        """What `next` would run, without beginning it. Raises what is wrong with it."""
        return self._order_of(self._generations.recipe(self._generations.current))

    def failed(self, error: TokenspeedError) -> None:
        """The generation cannot run. Raises the error unless another one takes its place."""
        if not self._generations.fall_back(str(error)):
            raise error
        log.error(
            "generation %d failed and gives way to %d: %s",
            self.generation,
            self._generations.current,
            error,
        )

    def ready(self) -> None:
        self._generations.ready()

    def put_off(self) -> None:
        """The process stops because it was asked to."""
        self._generations.put_off()

    def remaining(self) -> float | None:
        """Seconds until `lapse`, None where nobody has to confirm anything."""
        return self._generations.remaining()

    def lapse(self) -> bool:
        """Ends a trial that was not confirmed in time. False when it was, after all."""
        left = self._generations.remaining()
        if left is None or left > 0 or not self._generations.fall_back("nobody confirmed it"):
            return False
        log.warning(
            "generation %d was not confirmed and gives way to %d",
            self.generation,
            self._generations.current,
        )
        return True
