"""The price book as it is now: from the configuration, what was imported, and the shipped tables."""

import logging
import pathlib
import time
from collections.abc import Sequence

from gateway.configuration import pricing_config
from gateway.configuration.config import Config, PriceEntry
from gateway.configuration.config_load import price_tables
from metering.archive.objects import ArchiveError, LocalObjects, Objects
from metering.cost.price_book import PriceBook
from metering.cost.price_versions import PREFIX, PriceVersions, bring_level
from metering.cost.pricing import PriceList
from metering.logs import log

LEVEL_S = 30.0
"""How often it is looked for imports of other hosts."""

logger = logging.getLogger("weighbridge.prices")


def load(prices: Sequence[PriceEntry], objects: Objects) -> PriceBook:
    """The whole book. objects: as archives.objects_of. Raises ArchiveError."""
    return pricing_config.price_book(prices, PriceVersions(objects).prices(), price_tables())


class WatchedPrices:
    """A worker's price list, which takes up what is imported while it runs.

    It reads the copy under the state directory alone; an import that can't be read is logged, and changes nothing.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._state_dir = pathlib.Path(config.state_dir)
        self._seen: list[str] = []
        self.list = pricing_config.price_list(
            config, pricing_config.price_book(config.prices, (), price_tables())
        )
        self.look()

    def look(self) -> bool:
        """Take up new versions. returns: were there any?"""
        directory = self._state_dir / PREFIX
        names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        if names == self._seen:
            return False
        self._seen = names
        try:
            book = load(self._config.prices, LocalObjects(self._state_dir))
        except ArchiveError as error:
            log(logger, logging.ERROR, "imported prices cannot be used", reason=str(error))
            return False
        before: PriceList = self.list
        self.list = pricing_config.price_list(self._config, book)
        return before.book.digest != book.digest


class PriceCopies:
    """The clerk's duty: the copy of imported prices under the state directory is level with the archive's."""

    def __init__(self, archive: Objects, state_dir: pathlib.Path) -> None:
        self._archive = archive
        self._state_dir = state_dir
        self._level: set[str] = set()
        self._due_s = 0.0

    def bring_level_if_due(self) -> None:
        """Raises ArchiveError."""
        if time.monotonic() >= self._due_s:
            self._level = bring_level(self._archive, self._state_dir, self._level)
            self._due_s = time.monotonic() + LEVEL_S
