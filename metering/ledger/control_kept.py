"""What the control keeps of complete journals, so that neither a new process nor their deletion makes them unknown.

    <state_dir>/control/<writer>.json   one journal, to its last line
    <state_dir>/control/past.json       the sum of those that the ledger has closed and this disk has no more

A journal is added to `past.json`, with its name, and its own file is deleted then: one that is there in spite of that
is of before a crash, and does not count.
"""

import pathlib
from collections.abc import Iterable

import msgspec

from metering import files
from metering.ledger import ledger
from metering.ledger.control import Counted, Ledgered
from metering.ledger.ledger import UNITS, Account, Amounts

DIRECTORY = "control"
_PAST = "past"
_SUFFIX = ".json"


class _Kept(msgspec.Struct, frozen=True):
    """A complete directory, to its last line."""

    counted: Counted
    ledgered: list[tuple[str, int, list[tuple[Account, Amounts]]]]


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What journals counted together (metering/ledger/control.py, Counted). writers: by name."""

    backends: dict[str, int] = {}
    sums: dict[str, Amounts] = {}
    writers: tuple[str, ...] = ()

    @property
    def counted(self) -> Counted:
        """As of one journal."""
        return Counted(sums=self.sums, backends=self.backends)


class ControlKept:
    """The files of one state directory. One caller at a time. All raise OSError."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self._path = state_dir / DIRECTORY

    def writers(self) -> set[str]:
        """Those that have a file of their own."""
        return self._stems() - {_PAST, *self.past().writers}

    def load(self, writer: str) -> tuple[Counted, Ledgered] | None:
        """None: there is nothing, or nothing that could be read; it is made again from the directory."""
        try:
            kept = msgspec.json.decode(self._file(writer).read_bytes(), type=_Kept)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return kept.counted, Ledgered(
            {tenant: upto for tenant, upto, _ in kept.ledgered},
            {tenant: dict(accounts) for tenant, _, accounts in kept.ledgered},
        )

    def put(self, writer: str, counted: Counted, ledgered: Ledgered) -> None:
        """Keep a complete journal."""
        rows = [(tenant, upto, list(ledgered.sums[tenant].items())) for tenant, upto in ledgered.upto.items()]
        self._path.mkdir(exist_ok=True)
        files.put(self._file(writer), msgspec.json.encode(_Kept(counted, rows)))

    def past(self) -> Past:
        """The sum of those that are past."""
        try:
            return msgspec.json.decode(self._file(_PAST).read_bytes(), type=Past)
        except FileNotFoundError:
            return Past()

    def add_to_past(self, journals: Iterable[tuple[str, Counted]]) -> None:
        """Add journals, by writer, to those that are past, and delete what was kept of each. Again is harmless."""
        past = self.past()
        backends, sums = dict(past.backends), {tenant: list(held) for tenant, held in past.sums.items()}
        named = set(past.writers)
        for writer, counted in journals:
            if writer in named:
                continue
            named.add(writer)
            for tenant, amounts in counted.sums.items():
                ledger.add(sums.setdefault(tenant, [0] * len(UNITS)), amounts)
            for backend, tokens in counted.backends.items():
                backends[backend] = backends.get(backend, 0) + tokens
        new = Past(backends=backends, sums=sums, writers=tuple(sorted(named)))
        files.put(self._file(_PAST), msgspec.json.encode(new))
        for writer in named & self._stems():
            self._file(writer).unlink()

    def _stems(self) -> set[str]:
        return {path.stem for path in self._path.glob(f"*{_SUFFIX}")}

    def _file(self, name: str) -> pathlib.Path:
        return self._path / f"{name}{_SUFFIX}"
