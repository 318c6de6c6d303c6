"""Which generation runs next in this process, and what becomes of the one before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tokenspeed.appliance.generations import GenerationError, Generations
from tokenspeed.appliance.order import Order, made
from tokenspeed.errors import TokenspeedError

log = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0  # after what could not be written or read


class Rollout:
    """`order_of` makes an order of the recipe of a generation.

    `next` and `failed` decide what runs, and raise where nothing can. The other methods are for
    what runs already: it goes on where generations cannot be read or written, and the log says so.
    """

    def __init__(self, generations: Generations, order_of: Callable[[Path], Order]) -> None:
        self._generations = generations
        self._order_of = order_of
        self._wait = 0.0  # seconds at least until a trial is ended
        self.generation = 0

    def next(self) -> Order:
        """What to run now. Raises what is wrong with it where nothing can take its place."""
        while True:
            self.generation = self._generations.begin()
            try:
                return self._order(self.generation)
            except TokenspeedError as error:
                self.failed(error)

    def selected(self) -> Order:
        """What `next` would run, without beginning it. Raises what is wrong with it."""
        return self.selection()[1]

    def selection(self) -> tuple[int, Order]:
        """The same with its number."""
        number = self._generations.current
        return number, self._order(number)

    def failed(self, error: Exception) -> None:
        """The generation cannot run. Raises the error unless another one takes its place."""
        if not self._generations.fall_back(_reason(error)):
            raise error
        log.error(
            "generation %d failed and gives way to %d: %s",
            self.generation,
            self._generations.current,
            _reason(error),
            exc_info=None if isinstance(error, TokenspeedError) else error,
        )

    def took_over(self, number: int) -> None:
        """A generation goes on in the place of the one that ran, and answers."""

        def write() -> None:
            if self._generations.current == number:  # else the next one was selected meanwhile
                self._generations.begin()
                self._generations.ready()

        self.generation = number
        self._note(write)

    def goes_on(self, error: TokenspeedError) -> bool:
        """The generation selected last cannot be taken over from the one that runs. Whether that
        one stays; False where another one takes its place."""
        try:
            wanted = self._generations.current
            gave_way = self._generations.fall_back(_reason(error))
            stays = not gave_way or self._generations.current == self.generation
        except GenerationError as worse:
            log.error("%s", worse)
            return True
        log.error("generation %d cannot take over: %s", wanted, error)
        return stays

    def ready(self) -> None:
        self._note(self._generations.ready)

    def put_off(self) -> None:
        """The process stops because it was asked to."""
        self._note(self._generations.put_off)

    def remaining(self) -> float | None:
        """Seconds until `lapse`, None where nobody has to confirm anything."""
        try:
            left = self._generations.remaining()
        except GenerationError as error:
            log.error("%s", error)
            return AGAIN_SECONDS
        return left if left is None else max(left, self._wait)

    def lapse(self) -> bool:
        """Ends a trial that was not confirmed in time. False when it was, after all."""
        try:
            left = self._generations.remaining()
            lapsed = left is not None and left <= 0
            if not lapsed or not self._generations.fall_back("nobody confirmed it"):
                return False
        except GenerationError as error:
            log.error("a trial is over and cannot be ended yet: %s", error)
            self._wait = AGAIN_SECONDS
            return False
        log.warning(
            "generation %d was not confirmed and gives way to %d",
            self.generation,
            self._generations.current,
        )
        return True

    def _order(self, number: int) -> Order:
        return made(lambda: self._order_of(self._generations.recipe(number)))

    def _note(self, write: Callable[[], None]) -> None:
        try:
            write()
        except GenerationError as error:
            log.error("how the generation fares is not noted: %s", error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, TokenspeedError) else f"{type(error).__name__}: {error}"
