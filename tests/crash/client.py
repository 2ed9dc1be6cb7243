"""The load of a crash run, in a process of its own: `python -m tests.crash.client TARGET LOG CLIENTS`.

TARGET: JSON with `port`, `model` and `keys` (tenant → API key). Commands come over stdin, a line each, and each is
answered with a line:

    begin NAME SEED    the clients ask, one request after another; ids begin with NAME
    finish             nothing more is asked; answered when the last answer under way is over

All that a client does and reads is noted in LOG at once, a JSON line for each field of its entry that changes
(tests/support/streamload.py), so whatever happens to the gateway, the log says what had been read before.
"""

import json
import os
import pathlib
import random
import sys
from typing import Any

from tests.crash.backend import Manner
from tests.support.streamload import TEXT, Draw, Entry, Load, Target

UNKNOWN_MODEL = "m0"
STRANGER = "stranger"
"""A tenant whose key nobody knows."""
MANNERS = {
    Manner.PLAIN: 50, Manner.SLOW_HEAD: 7, Manner.SLOW_FIRST: 9, Manner.SLOW_BODY: 9, Manner.SLOW_USAGE: 8,
    Manner.SLOW_END: 7, Manner.REFUSE: 6, Manner.FAIL: 3, Manner.BUSY: 2, Manner.RESET_FIRST: 3,
    Manner.RESET_MIDWAY: 3, Manner.STALL_FIRST: 1, Manner.STALL_MIDWAY: 1,
}  # fmt: skip
"""How often each is asked for."""
SIZED_ONLY = {Manner.SLOW_BODY}
STREAM_ONLY = {Manner.SLOW_FIRST, Manner.SLOW_USAGE, Manner.SLOW_END}


class Log:
    """Where entries are noted. One write() a line."""

    def __init__(self, path: pathlib.Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, request_id: str, field: str, value: Any) -> None:
        os.write(self._fd, json.dumps([request_id, field, value]).encode() + b"\n")


def logged(log: Log) -> type[Entry]:
    """An entry each change of which is noted."""

    class Logged(Entry):
        def __setattr__(self, field: str, value: Any) -> None:
            super().__setattr__(field, value)
            log.note(self.request_id, field, value)

    return Logged


def drawing(make: type[Entry]) -> Draw:
    """Requests of all kinds: whole answers, streams, long ones; clients that leave; servers that fail; refused ones."""

    def draw(rng: random.Random, request_id: str, target: Target) -> tuple[Entry, bytes]:
        manner = rng.choices(list(MANNERS), list(MANNERS.values()))[0]
        stream = manner in STREAM_ONLY or (manner not in SIZED_ONLY and rng.random() < 0.75)
        chat, tokens, gap_ms = rng.random() < 0.75, rng.randrange(1, 12), rng.randrange(5, 30)
        if stream and rng.random() < 0.12:
            tokens, gap_ms = rng.randrange(30, 50), rng.randrange(20, 40)  # a long one, to be met midway
        refused = rng.random() < 0.04
        tenant = (
            STRANGER if refused and rng.random() < 0.5 else rng.choice(sorted({*target.keys} - {STRANGER}))
        )
        leaves_after = None
        if stream and manner is Manner.SLOW_USAGE and rng.random() < 0.7:
            leaves_after = tokens + chat  # with the last token, when only the counts are due
        elif stream and rng.random() < 0.08:
            leaves_after = rng.randrange(tokens)
        entry = make(
            request_id=request_id,
            tenant=tenant,
            path="/v1/chat/completions" if chat else "/v1/completions",
            stream=stream,
            include_usage=stream and rng.random() < 0.5,
            leaves_after=leaves_after,
        )
        text = (TEXT * 4)[: rng.randrange(20, 4 * len(TEXT))]
        body: dict[str, Any] = {
            "model": UNKNOWN_MODEL if refused and tenant != STRANGER else target.model,
            "max_tokens": tokens, "seed": gap_ms, "user": manner.value,
        }  # fmt: skip
        body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        if stream:
            body["stream"] = True
        if entry.include_usage:
            body["stream_options"] = {"include_usage": True}
        return entry, json.dumps(body).encode()

    return draw


def main(target: str, log: str, clients: str) -> None:
    found = Target(**json.loads(target))
    draw = drawing(logged(Log(pathlib.Path(log))))
    load: Load | None = None
    for line in sys.stdin:
        match line.split():
            case ["begin", name, seed]:
                load = Load(found, int(clients), int(seed), name, draw=draw)
                load.start()
            case ["finish"] if load is not None:
                load.finish()
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
