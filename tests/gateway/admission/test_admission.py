"""One call's dealings with its limits, from wish to settling; the limiter is a book that notes what it is told."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from backends.errors import BackendDisconnected
from gateway.admission.admission import CONCURRENCY_WAIT_MS, Admission, Admissions, error_of
from gateway.api import errors
from gateway.api.auth import Principal
from gateway.api.operations import ALL_OPERATIONS, OPERATIONS
from gateway.api.wire import read_ask
from gateway.calls.targets import ServedModel
from gateway.configuration.config import Tenant
from metering.limits.asks import Answer, Granted, Group, Heard, Rate, Refused, Scope, Wish
from metering.limits.limiter import CANNOT
from metering.limits.terms import Terms
from metering.record import AttemptOutcome, AttemptRecord, CallRecord, Expected, Outcome
from metering.usage import UNKNOWN, Usage, UsageSource
from tests.support.machine import LIMITS, facts, plan, target

CHAT = OPERATIONS["/v1/chat/completions"]
BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'
UNBOUND = b'{"model":"m1","messages":[{"role":"user","content":"hi"}]}'
PRINCIPAL = Principal(tenant="acme", project="main", key_id="k1", scopes=frozenset({"inference"}), tags={})
SERVED = ServedModel(id="m1", owner=None, tiers=(), limits=LIMITS)
PLAN = plan((target("a"), target("b", length=8192)))


class Book:
    """A limiter that notes what it is told. applying: do limits apply?"""

    def __init__(self, *, applying: bool = True) -> None:
        self.applying = applying
        self.wishes: list[Wish] = []
        self.told: list[tuple[Any, ...]] = []
        self.answered: Callable[[Answer], None] | None = None

    def applies(self, _principal: Any, _model: str) -> bool:
        return self.applying

    def ask(self, wish: Wish, answered: Callable[[Answer], None]) -> Any:
        self.wishes.append(wish)
        self.answered = answered
        return len(self.wishes)

    def rates(self, _principal: Any, model: str) -> tuple[Rate | None, Rate | None]:
        return (Rate(60, 7, 20), None) if model == "m1" else (None, None)

    def give_up(self, ask: Any) -> None:
        self.told.append(("given up", ask))

    def settle(self, _granted: Granted, *, cost_pusd: int | None, tokens: int, seq: int | None) -> None:
        self.told.append(("settled", cost_pusd, tokens, seq))

    def failed(self, _granted: Granted, *, cost_pusd: int | None = None, seq: int | None = None) -> None:
        self.told.append(("failed", cost_pusd, seq))


def granted() -> Granted:
    """Of 60 requests a minute one is taken."""
    scope = Scope("t", Terms(requests_per_minute=60))
    return Granted("acme", Group((scope,)), [0], Heard(0, [1, 60_000, 0]), 20, 100, True)


def begun(book: Book, body: bytes = BODY, tenant: Tenant | None = None) -> Admission:
    admissions = Admissions(book)
    admissions.use([tenant or Tenant(name="acme")])
    found = admissions.of(PRINCIPAL, SERVED, CHAT, read_ask(body, CHAT), body, PLAN, 0)
    assert found is not None
    return found


def asked(book: Book, admission: Admission) -> list[Any]:
    heard: list[Any] = []
    admission.ask(heard.append)
    assert heard == []
    return heard


def line(**changed: Any) -> CallRecord:
    known = facts()
    attempt = AttemptRecord(
        backend="a", ended_ns=1, outcome=AttemptOutcome.COMPLETED, slot_ns=1, started_ns=0
    )
    made = CallRecord(
        admitted_ns=0, at_ns=0, attempts=(attempt,), body_bytes=1, call_id=known.call_id, cost_pusd=17, finished_ns=0,
        key_id="k1", model="m1", model_requested="m1", operation="chat", outcome=Outcome.COMPLETED, params=known.params,
        prev="0" * 64, project="main", received_ns=0, request_id="r", seq=9, stream=False, tags={}, tenant="acme",
        usage=Usage(source=UsageSource.REPORTED, prompt_tokens=10, completion_tokens=5),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def test_a_call_that_no_limit_applies_to_has_none() -> None:
    admissions = Admissions(Book(applying=False))
    assert admissions.of(PRINCIPAL, SERVED, CHAT, read_ask(BODY, CHAT), BODY, PLAN, 0) is None


def test_it_wishes_for_what_it_is_expected_to_take() -> None:
    book = Book()
    admission = begun(book)
    asked(book, admission)
    (wish,) = book.wishes
    assert (wish.tenant, wish.project, wish.key_id, wish.model) == ("acme", "main", "k1", "m1")
    assert (wish.tokens, wish.tokens_min) == (len(BODY) // 4 + 5, 5)
    assert wish.hold_pusd == len(BODY) // 4 + 5  # a picodollar a token
    assert admission.bound is None


def test_at_worst_it_holds_the_dearest_answer_and_has_its_bound_written() -> None:
    book = Book()
    admission = begun(book, UNBOUND, Tenant(name="acme", hold="worst"))
    asked(book, admission)
    assert admission.bound == ("max_tokens", b"1024")
    assert book.wishes[0].hold_pusd == len(UNBOUND) + 1024 + 1024
    assert begun(Book(), UNBOUND, Tenant(name="zeta", hold="worst")).bound is None


def test_room_is_told_and_how_it_stands() -> None:
    book = Book()
    admission = begun(book)
    heard = asked(book, admission)
    assert admission.lines == b""
    assert book.answered is not None
    book.answered(granted())
    assert heard == [None]
    assert b"x-ratelimit-remaining-requests: 59\r\n" in admission.lines


def test_a_refusal_is_told_and_how_it_stands_and_there_is_nothing_to_settle() -> None:
    book = Book()
    admission = begun(book)
    heard = asked(book, admission)
    assert book.answered is not None
    book.answered(
        Refused(
            code="rate_limit_exceeded", limit="requests_per_minute of the key k1: 60", retry_after_ms=1_500,
            requests=Rate(60, 0, 1_500),
        )
    )  # fmt: skip
    (error,) = heard
    assert isinstance(error, errors.RateLimited)
    assert b"x-ratelimit-remaining-requests: 0\r\n" in admission.lines
    admission.end()
    assert book.told == []


def test_who_does_not_come_to_ask_is_told_too() -> None:
    admissions = Admissions(Book())
    assert b"x-ratelimit-remaining-requests: 7\r\n" in admissions.lines(PRINCIPAL, "m1")
    assert admissions.lines(PRINCIPAL, "") == b""


def test_one_that_nobody_waits_for_is_given_up() -> None:
    book = Book()
    admission = begun(book)
    heard = asked(book, admission)
    admission.give_up()
    admission.end()
    assert (book.told, heard) == ([("given up", 1)], [])


UNAVAILABLE = AttemptRecord(
    backend="a", ended_ns=1, outcome=AttemptOutcome.UNAVAILABLE, slot_ns=1, started_ns=0,
    error=BackendDisconnected("a", "disconnected").reason,
)  # fmt: skip


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (line(), ("settled", 17, 15, 9)),
        (line(cost_pusd=None, usage=UNKNOWN), ("settled", None, 0, 9)),
        (line(seq=0), ("settled", 17, 15, None)),  # shown in the log only
        (line(outcome=Outcome.CLIENT_GONE), ("settled", 17, 15, 9)),
        (line(outcome=Outcome.CLIENT_GONE, attempts=(), cost_pusd=0), ("failed", 0, 9)),
        (line(outcome=Outcome.SHED, attempts=(), cost_pusd=0), ("failed", 0, 9)),
        (line(outcome=Outcome.REFUSED, cost_pusd=0), ("failed", 0, 9)),
        (line(outcome=Outcome.BACKEND_FAILED, attempts=(UNAVAILABLE,), cost_pusd=0), ("failed", 0, 9)),
        (line(outcome=Outcome.BACKEND_FAILED), ("failed", 17, 9)),  # a part of an answer costs what it cost
        (line(outcome=Outcome.TIMED_OUT), ("failed", 17, 9)),
    ],
)
def test_it_is_settled_by_its_record(record: CallRecord, told: tuple[Any, ...]) -> None:
    book = Book()
    admission = begun(book)
    asked(book, admission)
    assert book.answered is not None
    book.answered(granted())
    admission.sealed(record)
    admission.end()
    assert book.told == [told]


def test_without_a_record_all_is_given_back() -> None:
    book = Book()
    admission = begun(book)
    asked(book, admission)
    assert book.answered is not None
    book.answered(granted())
    admission.sealed(line())
    admission.unrecorded()
    admission.end()
    assert book.told == [("failed", None, None)]


@pytest.mark.parametrize(
    ("outcome", "learned"),
    [(Outcome.COMPLETED, True), (Outcome.CLIENT_GONE, False), (Outcome.TIMED_OUT, False)],
)
def test_only_whole_answers_teach(outcome: Outcome, learned: bool) -> None:
    book = Book()
    admissions = Admissions(book)
    for _ in range(2):
        admission = admissions.of(PRINCIPAL, SERVED, CHAT, read_ask(UNBOUND, CHAT), UNBOUND, PLAN, 0)
        assert admission is not None
        asked(book, admission)
        assert book.answered is not None
        book.answered(granted())
        admission.sealed(line(outcome=outcome))
        admission.end()
    first, second = book.wishes
    assert first.hold_pusd == len(UNBOUND) // 4
    assert second.hold_pusd == (10 + 5 if learned else len(UNBOUND) // 4)


# -- lost calls that are billed

BILLED = Tenant(name="acme", lost="estimated")


def test_the_lost_calls_of_who_is_not_billed_for_them_have_no_price() -> None:
    assert begun(Book()).expected is msgspec.UNSET
    assert begun(Book(), tenant=Tenant(name="zeta", lost="estimated")).expected is msgspec.UNSET


@pytest.mark.parametrize("applying", [True, False])
@pytest.mark.parametrize("hold", ["expected", "worst"])
def test_a_lost_call_is_billed_what_it_is_expected_to_cost_and_never_the_worst(
    *, applying: bool, hold: Literal["expected", "worst"]
) -> None:
    admission = begun(Book(applying=applying), tenant=msgspec.structs.replace(BILLED, hold=hold))
    assert isinstance(admission.expected, Expected)
    assert admission.expected.cost_pusd == len(BODY) // 4 + 5
    assert admission.asks == applying


def test_where_no_limit_applies_nobody_is_asked_and_it_is_learned_from() -> None:
    book = Book(applying=False)
    admissions = Admissions(book)
    admissions.use([BILLED])
    costs = []
    for _ in range(2):
        admission = admissions.of(PRINCIPAL, SERVED, CHAT, read_ask(UNBOUND, CHAT), UNBOUND, PLAN, 0)
        assert admission is not None
        assert (admission.asks, admission.bound, admission.lines) == (False, None, b"")
        assert isinstance(admission.expected, Expected)
        costs.append(admission.expected.cost_pusd)
        admission.sealed(line())
        admission.end()
    assert costs == [None, 10 + 5]
    assert (book.wishes, book.told) == ([], [])


def test_what_costs_nothing_is_lost_for_nothing() -> None:
    tokenize = ALL_OPERATIONS["/tokenize"]
    admissions = Admissions(Book(applying=False))
    admissions.use([BILLED])
    body = b'{"model":"m1","prompt":"hi"}'
    assert admissions.of(PRINCIPAL, SERVED, tokenize, read_ask(body, tokenize), body, PLAN, 0) is None


# -- what a client is told


@pytest.mark.parametrize(
    ("refused", "kind", "type_", "wait_ms", "words"),
    [
        (
            Refused(code="rate_limit_exceeded", limit="requests_per_minute of the key k: 5", retry_after_ms=1_500),
            errors.RateLimited, "requests", 1_500, "try again in 1.5s",
        ),
        (
            Refused(code="rate_limit_exceeded", limit="tokens_per_minute of the tenant: 5", retry_after_ms=20),
            errors.RateLimited, "tokens", 20, "try again in 20ms",
        ),
        (
            Refused(code="rate_limit_exceeded", limit="tokens_per_minute of the tenant: 5, and this call …"),
            errors.RateLimited, "tokens", None, "it can never be admitted",
        ),
        (
            Refused(code="rate_limit_exceeded", limit="concurrency of the tenant: 5"),
            errors.RateLimited, "requests", CONCURRENCY_WAIT_MS, "try again in 1s",
        ),
        (
            Refused(code="insufficient_quota", limit="budget of the key k: 5 USD in 202611", retry_after_ms=7_000),
            errors.OutOfBudget, "insufficient_quota", 7_000,
            "budget of the key k: 5 USD in 202611; its window ends in 7s",
        ),
        (
            Refused(code="insufficient_quota", limit="a hard budget, which takes …"),
            errors.OutOfBudget, "insufficient_quota", None, "there is no room under a hard budget, which takes …",
        ),
    ],
)  # fmt: skip
def test_a_refusal_in_a_clients_words(
    refused: Refused, kind: type[errors.RateLimited], type_: str, wait_ms: int | None, words: str
) -> None:
    error = error_of(refused)
    assert type(error) is kind
    assert (error.type, error.wait_ms, error.limit) == (type_, wait_ms, refused.limit)
    assert words in error.message


def test_a_store_that_is_away_is_no_limit() -> None:
    error = error_of(Refused(code="rate_limit_exceeded", limit=CANNOT, retry_after_ms=1_000))
    assert isinstance(error, errors.LimitsUnavailable)
    assert (int(error.status), error.retry_after_s) == (503, 1)
