"""Limits in tests: the store's scripts by hand, at a time of the test's own, and random messages of workers."""

import importlib.resources
import random
from collections.abc import Sequence

import msgspec

from metering.limits import messages
from metering.limits.messages import Kind, Message, Reply, ScopeSaid, said_ask, said_budgets, said_held
from metering.limits.rules import Part, Sums, Total, Worker
from tests.support.stores import Running

TENANT = "acme"
TAG = f"wb:1:{{{TENANT}}}"
WINDOWS = (202611, 20261128)
CLOCK = "local time = call('TIME')"
LARGE = (
    0,
    1,
    10**10 - 1,
    10**10,
    2**53 - 1,
    2**53,
    2**53 + 1,
    10**18,
    4 * 10**18 - 1,
    4 * 10**18,
    2**63 - 1,
    2**63,
)
"""Amounts at which a double, or 64 bits, would go wrong."""


def script(*names: str) -> str:
    """Scripts as the limiter puts them together."""
    data = importlib.resources.files("metering") / "data"
    return "".join((data / f"{name}.lua").read_text("utf-8") for name in names)


class Scripted:
    """The store's part of one tenant. now_ms: the clock that it goes by. text: the script; a test may break it."""

    def __init__(self, store: Running) -> None:
        self.store = store
        self.now_ms = 1_000_000
        self.text = script("limits_sums", "limits")

    def be_ready(self, ready: bool) -> None:
        """Is it known what was spent?"""
        self.store.ask("HSET", f"{TAG}:meta", "epoch", "e1", "ready", "e1" if ready else "e0")

    def spend(self, window: int, scope: str, pusd: int) -> None:
        """So much was spent, all told."""
        self.store.ask("HSET", f"{TAG}:b:{window}", scope, str(pusd))

    def take(self, writer: str, message: Message) -> Reply:
        """Have it take a worker's message."""
        assert CLOCK in self.text
        text = self.text.replace(CLOCK, "local time = {ARGV[3], ARGV[4]}")
        keys = [
            f"{TAG}:meta",
            f"{TAG}:l",
            f"{TAG}:lw",
            f"{TAG}:l:{writer}",
            *(f"{TAG}:b:{w}" for w in WINDOWS),
        ]
        seconds, ms = divmod(self.now_ms, 1_000)
        words = (
            "EVAL",
            text,
            str(len(keys)),
            *keys,
            writer,
            messages.encode(message),
            str(seconds),
            str(ms * 1_000),
        )
        return messages.decode(self.store.ask(*words, raw=True))

    def sums(self) -> tuple[dict[str, Total], dict[str, Worker]]:
        """All it holds, as the model has it."""
        totals = {scope.decode(): _total(packed) for scope, packed in self._hash("l").items()}
        seen = {writer.decode(): int(text) for writer, text in self._hash("lw").items()}
        workers = {}
        for key in self.store.ask("KEYS", f"{TAG}:l:*"):
            writer = key.rpartition(":")[2]
            parts = self._hash(f"l:{writer}")
            number, whole, seen_ms = msgspec.msgpack.decode(parts.pop(b"#"))
            assert seen.get(writer, seen_ms) == seen_ms
            sums = {scope.decode(): _part(packed) for scope, packed in parts.items()}
            workers[writer] = Worker(number, seen.get(writer), bool(whole), sums)
        assert seen.keys() <= workers.keys()
        return totals, workers

    def _hash(self, name: str) -> dict[bytes, bytes]:
        flat = self.store.ask("HGETALL", f"{TAG}:{name}", raw=True)
        return dict(zip(flat[::2], flat[1::2], strict=True))


def _held(numbers: Sequence[int]) -> dict[int, int]:
    held: dict[int, int] = {}
    for at in range(0, len(numbers), 3):
        window, high, low = numbers[at : at + 3]
        fine = 0 <= low < 10**10  # of two forms of an amount only one is right
        held[window] = held.get(window, 0) + high * 10**10 + low if fine else -1
    return held


def _total(packed: bytes) -> Total:
    numbers = msgspec.msgpack.decode(packed)
    return Total(*numbers[:5], held=_held(numbers[5:]))


def _part(packed: bytes) -> Part:
    numbers = msgspec.msgpack.decode(packed)
    return Part(*numbers[:3], held=_held(numbers[3:]))


def plain(sums: Sums) -> tuple[dict[str, Total], dict[str, Worker]]:
    """What a model holds, without what is zero: the store does not keep that."""

    def held(one: Total | Part) -> Total | Part:
        return msgspec.structs.replace(one, held={window: pusd for window, pusd in one.held.items() if pusd})

    return (
        {scope: held(total) for scope, total in sums.totals.items()},
        {
            writer: msgspec.structs.replace(
                worker, parts={name: held(part) for name, part in worker.parts.items()}
            )
            for writer, worker in sums.workers.items()
        },
    )


def random_message(
    rng: random.Random, number: int, base: int, *, scopes: Sequence[str] = ("t", "k:1", "k:2")
) -> Message:
    """Sums and asks of any kind, as no one worker would send them."""
    amounts = [*LARGE, rng.randrange(4 * 10**18)]
    said = [
        ScopeSaid(
            scope,
            rng.randrange(4),
            rng.choice([rng.randrange(100) * 60_000, rng.randrange(2**52)]),
            rng.choice([rng.randrange(10**9), 2**52 - 1 - rng.randrange(10**9)]),
            rng.choice([0, 0, 3, 60, 10**10]),
            rng.choice([0, 0, 1_000, 10**10]),
            rng.choice([0, 0, 2, 8]),
            said_held((window, rng.choice(amounts)) for window in rng.choices(WINDOWS, k=rng.randrange(4))),
            said_budgets(
                (window, rng.choice(amounts), rng.random() < 0.7)
                for window in rng.choices(WINDOWS, k=rng.randrange(3))
            ),
        )
        for scope in rng.sample(scopes, rng.randrange(len(scopes) + 1))
    ]
    asks = [
        said_ask(
            rng.choice([0, 1, 900, 2_000]),
            rng.choice([0, 1, rng.choice(amounts)]),
            rng.sample(range(len(said)), rng.randrange(1, len(said) + 1)),
        )
        for _ in range(rng.randrange(4) if said else 0)
    ]
    kind = rng.choices([Kind.USUAL, Kind.LEAVE, Kind.LOOK], [90, 3, 7])[0]
    return Message(number, base, kind, said, asks)
