"""The demo's calls, made as an application makes them, and what the gateway has to show for them.

Plain HTTP with the standard library: nothing here knows the inside of the gateway until the calls
have been made. Then the ledger, the journal and the audit are read as their commands read them.
"""

import asyncio
import concurrent.futures
import contextlib
import datetime
import http.client
import json
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.commands.demo_fleet import MODEL
from gateway.processes.sockets import Address
from metering.audit import audit, audit_page
from metering.export import export
from metering.export.export import Row
from metering.journal import journal
from metering.journal.journal import Directory
from metering.ledger.ledger import UNITS
from metering.ledger.store import Store
from metering.record import CallRecord
from metering.units import NS_PER_HOUR, usd_text

READY_S = 30.0
LEDGER_S = 10.0
CALL_TIMEOUT_S = 60.0
POLL_S = 0.1

QUESTION = "What does a weighbridge do, in one sentence?"
HANDBOOK = (
    "You answer for the support desk of Globex. Be brief, be exact, name the page of the handbook that you "
    "rely on, and say so when the handbook does not cover a question. Never promise a date of delivery, and "
    "never quote a price that is not in the price list of the current quarter. Sign as the support desk."
)

Say = Callable[[str], None]


class TourError(Exception):
    """Something did not come out as it must; the message says what."""


class Answer(NamedTuple):
    """What a client sees of a call. fallback: why it was served by a lower tier, if it was. requests_left: of its
    requests a minute; None: it has no such limit, or the store did not say yet how it stands."""

    call_id: str
    served_by: str
    fallback: str | None
    requests_left: str | None
    text: str


class Client:
    """An application of one tenant."""

    def __init__(self, api: Address, key: str) -> None:
        self._api = api
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def chat(self, content: str, *, system: str | None = None, max_tokens: int = 24) -> Answer:
        """A chat call whose answer comes whole."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": content})
        ask = {"model": MODEL, "messages": messages, "max_tokens": max_tokens}
        with self._post("/v1/chat/completions", ask) as response:
            answer = json.loads(response.read())
            return _answer(response, answer["choices"][0]["message"]["content"])

    def stream(self, content: str, say: Say, *, max_tokens: int = 24) -> Answer:
        """A streamed chat call; `say` gets each piece of text when it comes."""
        messages = [{"role": "user", "content": content}]
        ask = {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "stream": True}
        pieces = []
        with self._post("/v1/chat/completions", ask) as response:
            for event in _events(response):
                for choice in event["choices"]:
                    if piece := choice["delta"].get("content"):
                        say(piece)
                        pieces.append(piece)
            return _answer(response, "".join(pieces))

    def complete(self, prompt: str, *, max_tokens: int = 24) -> Answer:
        """A text completion."""
        ask = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens}
        with self._post("/v1/completions", ask) as response:
            return _answer(response, json.loads(response.read())["choices"][0]["text"])

    @contextlib.contextmanager
    def _post(self, path: str, ask: Mapping[str, Any]) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(_connection(self._api)) as connection:
            connection.request("POST", path, json.dumps(ask), self._headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise TourError(f"{path} answered {response.status}: {response.read().decode()}")
            yield response


def wait_until_ready(api: Address, backends: int) -> None:
    """Until the gateway has found all servers to be ready. Raises TourError."""
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.closing(_connection(api)) as connection:
            connection.request("GET", "/readyz")
            seen = json.loads(connection.getresponse().read())
        if sum(backend["state"] == "ready" for backend in seen["backends"]) == backends:
            return
        if time.monotonic() > deadline:
            raise TourError(f"not all servers became ready: {seen['backends']}")
        time.sleep(POLL_S)


def make_calls(clients: Mapping[str, Client], break_neuron: Callable[[], None], say: Say) -> list[Answer]:
    """Calls of three tenants: streamed and not, with a repeated prompt, and one while Neuron fails.

    break_neuron: makes the next call fail on every Neuron server.
    """
    acme, globex, initech = clients["acme"], clients["globex"], clients["initech"]
    say(f"acme asks, streamed: {QUESTION}\n  ")
    answers = [acme.stream(QUESTION, say)]
    say("\n")

    def support() -> list[Answer]:
        # The same long beginning three times, on two servers: one of them has it cached.
        asked = ("Where is my parcel?", "May I return it?", "Who pays the postage?")
        return [globex.chat(question, system=HANDBOOK) for question in asked]

    def reports() -> list[Answer]:
        return [initech.complete(f"Summary of week {week}: ") for week in (46, 47)]

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for made in [pool.submit(support), pool.submit(reports), pool.submit(support)]:
            answers += made.result()
    break_neuron()
    fallback = acme.chat("And what does it never do?")
    if fallback.fallback is None:
        raise TourError("a call that failed on all Neuron servers was not served by the GPU")
    return [*answers, fallback]


def wait_for_ledger(store_url: str, state_dir: pathlib.Path, call_ids: Sequence[str]) -> list[Row]:
    """Until the store holds all that the journal does, these calls too: its rows. Raises TourError."""
    return asyncio.run(_wait_for_ledger(store_url, state_dir / "journal", frozenset(call_ids)))


async def _wait_for_ledger(store_url: str, root: pathlib.Path, call_ids: frozenset[str]) -> list[Row]:
    hours = range(0, time.time_ns() // NS_PER_HOUR + 2)
    deadline = time.monotonic() + LEDGER_S
    store = Store(store_url)
    try:
        while True:
            found = journal.directories(root)
            rows = await export.rows_from_store(store, hours)
            if call_ids <= _recorded(found) and rows == export.rows_from_journal(found, hours):
                return rows
            if time.monotonic() > deadline:
                raise TourError("the ledger did not get what the journal has")
            await asyncio.sleep(POLL_S)
    finally:
        await store.close()


def _recorded(directories: Sequence[Directory]) -> set[str]:
    lines = (line for directory in directories for line, _, _ in directory.records())
    return {line.call_id for line in lines if isinstance(line, CallRecord)}


def cost_table(rows: Sequence[Row]) -> str:
    """What each tenant has used and what it cost, with the sum, as text."""
    head = ("tenant", "calls", "prompt", "(cached)", "completion", "estimated USD", "served by")
    lines: list[tuple[str, ...]] = [head]
    totals = [0] * len(UNITS)
    for tenant in sorted({row.tenant for row in rows}):
        sums, families = [0] * len(UNITS), Counter[str]()
        for row in (row for row in rows if row.tenant == tenant):
            sums = [have + more for have, more in zip(sums, row.amounts, strict=True)]
            families[row.account.family] += row.amounts[0]
        totals = [have + more for have, more in zip(totals, sums, strict=True)]
        served_by = ", ".join(f"{family} {calls}" for family, calls in sorted(families.items()))
        lines.append((tenant, *_shown(sums), served_by))
    lines.append(("sum", *_shown(totals), ""))
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    left = {0, len(head) - 1}
    return "".join(
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )


def limit_line(tenant: str, per_minute: int, answers: Sequence[Answer]) -> str:
    """What the answers to a tenant with a limit said of it; nothing, if none did."""
    left = [int(answer.requests_left) for answer in answers if answer.requests_left is not None]
    if not left:
        return ""
    header = "x-ratelimit-remaining-requests"
    return f"\n{tenant} may make {per_minute} calls a minute; its last answer said {header}: {min(left)}\n"


def ticket(state_dir: pathlib.Path, call_id: str) -> str:
    """The call's page, as `weighbridge audit show` prints it. Raises NotFound."""
    return audit_page.page(audit.find(state_dir / "journal", call_id))


def audit_line(state_dir: pathlib.Path, call_id: str) -> str:
    """The call in one line: who, which model, on what, for how much, and where that is written; -: not known."""
    found = audit.find(state_dir / "journal", call_id)
    record = found.line
    assert isinstance(record, CallRecord)
    instances = "+".join(instance.type or "unknown" for instance in record.instances)
    ended = datetime.datetime.fromtimestamp(record.finished_ns // 1_000_000_000, tz=datetime.UTC)
    usage = record.usage
    facts = {
        "call": record.call_id,
        "at": ended.isoformat().replace("+00:00", "Z"),
        "tenant": record.tenant,
        "key": record.key_id,
        "model": record.model,
        "backend": record.backend,
        "instance": instances,
        "family": record.instance_family,
        "neuron": record.neuron_version,
        "simulated": str(record.simulated).lower(),
        "outcome": record.outcome,
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_prompt_tokens,
        "completion": usage.completion_tokens,
        "usd": None if record.cost_pusd is None else usd_text(record.cost_pusd),
        "card": record.rate_card,
        "seq": record.seq,
        "leaf": found.leaf[:16],
    }
    words = (f"{name}={'-' if value is None else value}" for name, value in facts.items())
    return " ".join(words) + "\n"


def _shown(sums: Sequence[int]) -> tuple[str, ...]:
    calls, prompt, cached_prompt, completion, cost_pusd, _ = sums
    return (str(calls), str(prompt), f"({cached_prompt})", str(completion), usd_text(cost_pusd))


def _connection(api: Address) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(api.host, api.port, timeout=CALL_TIMEOUT_S)


def _answer(response: http.client.HTTPResponse, text: str) -> Answer:
    return Answer(
        call_id=response.headers["x-weighbridge-call-id"],
        served_by=response.headers["x-weighbridge-served-by"],
        fallback=response.headers["x-weighbridge-fallback"],
        requests_left=response.headers["x-ratelimit-remaining-requests"],
        text=text,
    )


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if data and data != b"[DONE]":
            yield json.loads(data)
