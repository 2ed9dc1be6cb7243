"""What event lines tell: fixed names, bounded values."""

import inspect
import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering import record
from metering.audit.keyring import Key
from metering.journal import chain, events
from metering.journal.events import Happening
from tests.support import signing

PAGE = pathlib.Path(__file__).parent.parent.parent.parent / "deploy" / "reference" / "journal.md"

VKEY = signing.signer().verifier.vkey
EACH = {
    "config": events.configured(digest="sha256:1", before="sha256:0", changed=["workers", "listen"]),
    "prices": events.repriced(what="rate_card", of="m/inf2", before='{"prompt":"1"}', after='{"prompt":"2"}'),
    "export": events.exported(
        actor="cli:ann", what="csv", period="a/b", rows=3, sha256="0" * 64, to="stdout", tenant="acme"
    ),
    "audit_read": events.audit_read(
        actor="0123456789ab", method="GET", path="/audit/v1/keys", status=200, request_id="r"
    ),
    "finance_read": events.finance_read(
        actor="0123456789ab", method="GET", path="/finance/v1/months", status=200, request_id="r"
    ),
    "admin": events.administered(
        actor="0123456789ab", method="POST", path="/admin/v1/tenants", status=201, request_id="r"
    ),
    "sign_in_refused": events.sign_in_refused(actor=None, face="audit", status=401, count=2),
    "retention": events.retired(where="local", writers=["w1"], older_than_ns=1)[0],
    "key": events.key_changed(actor="cli:ann", what="rotated", key=Key(from_ns=1, until_ns=2, vkey=VKEY)),
    "clock": events.clock_set(by_ms=-7_200_000),
    "close": events.hours_closed(
        actor="cli:ann", reason="due", first="2026-11-28T14:00:00Z", last="2026-11-28T14:00:00Z", hours=1
    ),
    "unwritten": events.unwritten({"call": 3, "refused": 1}),
    "ledger": events.ledger_rebuilt(actor="cli:ann", tenant="acme"),
    "reconcile": events.reconciled(
        actor="cli:ann", month="2026-11", bill="0" * 64, billed="1.2", allocated="1.1", hours=720
    ),
    "budget": events.budget_passed(
        tenant="acme", scope="k:0123456789ab", window="202611", budget="10", hard=True, percent=80, spent="8.1"
    ),
    "forget": events.forgotten(actor="cli:ann", tenant="acme", key="01234567"),
    "content_deleted": events.content_deleted(
        actor=None, where="local", tenant="acme", reason="age", until_ns=1, files=2
    ),
}  # fmt: skip
"""One of each topic, with all its names."""


@pytest.mark.parametrize("topic", EACH)
def test_each_topic_stands_on_the_page_with_its_names(topic: str) -> None:
    happening = EACH[topic]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert happening.topic == topic
    assert happening.data.keys() <= set(re.findall(r"`([^`]+)`", rows[topic]))


def test_there_is_one_function_for_each_topic() -> None:
    makers = [
        function
        for name, function in inspect.getmembers(events, inspect.isfunction)
        if not name.startswith("_")
        and inspect.signature(function).return_annotation in (Happening, list[Happening])
    ]
    assert len(makers) == len(EACH) + 5  # `ledger`, `prices` and `close` have two, `key` has three
    assert events.key_missing().data == {"what": "missing"}
    assert events.key_found("0a1b2c3d").data == {"what": "found", "key": "0a1b2c3d"}
    told = events.writers_closed(actor="cli:ann", writers=["w2", "w1"])
    assert told == Happening("ledger", "cli:ann", {"what": "writer_is_dead", "writers": "w1, w2"})
    told = events.prices_imported(
        actor="cli:ann",
        version=2,
        file="list.csv",
        sha256="0" * 64,
        added=3,
        before="sha256:0",
        after="sha256:1",
    )
    assert (told.topic, told.data["what"], told.data["added"]) == ("prices", "import", "3")
    (row,) = re.findall(r"^\| `prices` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert told.data.keys() <= set(re.findall(r"`([^`]+)`", row))


def test_a_happening_becomes_a_line_at_its_place() -> None:
    line = EACH["audit_read"].line(lambda: 5)(7, "ab")
    assert line == record.Event(
        actor="0123456789ab",
        at_ns=5,
        data={"method": "GET", "path": "/audit/v1/keys", "request_id": "r", "status": "200"},
        prev="ab",
        seq=7,
        topic="audit_read",
    )
    assert chain.decode(chain.encode(line)) == line


def test_what_does_not_apply_is_left_out() -> None:
    first = events.configured(digest="sha256:1", before=None, changed=[])
    assert first == Happening("config", None, {"digest": "sha256:1"})


TEXT = st.text(max_size=40).map(lambda text: text * 100)


@given(TEXT, TEXT, TEXT)
def test_a_line_is_bounded_whatever_it_tells(of: str, before: str, after: str) -> None:
    told = events.repriced(what="rate_card", of=of, before=before, after=after)
    assert all(len(value) <= events.TEXT_CHARACTERS_MAX for value in told.data.values())
    assert len(chain.encode(told.line(lambda: 2**62)(2**53, "0" * 64))) <= 2 * record.RECORD_BYTES_MAX


@given(st.lists(st.text("abc.[]", min_size=1, max_size=90), max_size=300, unique=True))
def test_of_a_long_list_the_rest_is_counted(names: list[str]) -> None:
    listed = events.configured(digest="d", before="c", changed=names).data.get("changed", "")
    assert len(listed) <= events.TEXT_CHARACTERS_MAX
    shown, _, more = listed.partition(", and ")
    shown_names = shown.split(", ") if shown else []
    assert shown_names == sorted(names)[: len(shown_names)]
    assert len(shown_names) + (int(more.split()[0]) if more else 0) == len(names)


@given(st.sets(st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=16, max_size=16), max_size=120))
def test_of_deleted_journals_each_is_named(names: set[str]) -> None:
    told = events.retired(where="archive", writers={f"w{name}" for name in names}, older_than_ns=1)
    assert all(len(event.data["writers"]) < events.TEXT_CHARACTERS_MAX for event in told)
    assert {writer for event in told for writer in event.data["writers"].split(", ")} == {
        f"w{name}" for name in names
    }


def test_names_that_do_not_fit_are_counted() -> None:
    names = [f"backends[{number:04d}].url" for number in range(100)]
    listed = events.configured(digest="d", before="c", changed=names).data["changed"]
    shown, _, more = listed.partition(", and ")
    assert shown.split(", ") == names[: len(shown.split(", "))]
    assert more == f"{100 - len(shown.split(', '))} more"
