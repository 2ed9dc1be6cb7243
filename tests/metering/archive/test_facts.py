"""Facts: what SQL says over the Parquet files is what plain Python says over the lines."""

import collections
import json
import pathlib
import random
import shutil
from collections.abc import Iterator

import duckdb
import pytest

from metering.archive import facts
from metering.archive.facts import COLUMNS, FactsError, Maker
from metering.journal import sealing
from metering.journal.journal import Directory, salvage_dead
from metering.record import AttemptOutcome, AttemptRecord, Instance, Outcome
from metering.units import NS_PER_HOUR
from metering.usage import UNKNOWN, Usage, UsageSource
from tests.support.journals import AT_NS, WRITER, Make, admitted, call, start, stop, tick, write_directory

DAY_NS = 24 * NS_PER_HOUR


def attempt(backend: str, tokens: int | None) -> AttemptRecord:
    usage = (
        UNKNOWN
        if tokens is None
        else Usage(source=UsageSource.REPORTED, prompt_tokens=tokens, completion_tokens=tokens + 1)
    )
    outcome = AttemptOutcome.FAILED if tokens is None else AttemptOutcome.COMPLETED
    return AttemptRecord(
        backend=backend, ended_ns=AT_NS, outcome=outcome, slot_ns=5, started_ns=AT_NS, usage=usage
    )


def some_calls(rng: random.Random, count: int) -> Iterator[Make]:
    """Calls of all kinds: no attempt, one, several; served and not; priced, free and unpriced."""
    for n in range(count):
        tries = [attempt(f"b{rng.randrange(3)}", rng.choice([None, rng.randrange(9)])) for _ in range(n % 4)]
        served = rng.choice([one.backend for one in tries] or [None]) if n % 5 else None
        yield admitted(f"{WRITER}-{n}")
        yield call(
            f"{WRITER}-{n}",
            attempts=tuple(tries),
            backend=served,
            cost_pusd=rng.choice([None, 0, rng.randrange(1 << 40)]),
            finished_ns=AT_NS + n,
            instances=tuple(Instance(id=f"i-{i}", type="t", units=i, units_total=24) for i in range(n % 3)),
            outcome=rng.choice(list(Outcome)),
            tenant=rng.choice(["acme", "globex"]),
            project=rng.choice([None, "web"]),
            usage=tries[-1].usage if tries else UNKNOWN,
        )


def closed(root: pathlib.Path, makes: list[Make], *, per_segment: int = 40) -> Directory:
    """A complete directory, sealed."""
    directory = Directory(
        write_directory(root / "journal", [start(), *makes, stop()], per_segment=per_segment)
    )
    seal_all(directory)
    return directory


def seal_all(directory: Directory) -> None:
    for path in sealing.due(directory, 1 << 62):
        sealing.seal(path)


def make_all(root: pathlib.Path, directory: Directory) -> Maker:
    maker = Maker(root / "facts")
    for first_seq in maker.missing(directory):
        maker.make(directory, first_seq)
    assert maker.missing(directory) == []
    return maker


def ask(root: pathlib.Path, query: str) -> list[tuple[object, ...]]:
    """An answer over all the facts, by a duckdb that is not the product's."""
    with duckdb.connect() as connection:
        return connection.execute(query.format(f"'{root}/facts/day=*/*.parquet'")).fetchall()


def lines(directory: Directory) -> list[dict]:
    """The calls as plain JSON."""
    data = b"".join(block for one in directory.segments() for block in one.blocks)
    return [line for line in map(json.loads, data.splitlines()) if line["kind"] == "call"]


def test_sums_are_those_of_the_lines_to_the_picodollar(tmp_path: pathlib.Path) -> None:
    directory = closed(tmp_path, list(some_calls(random.Random(7), 200)))
    make_all(tmp_path, directory)
    want: dict[tuple[str, str | None, str], list[int]] = collections.defaultdict(lambda: [0] * 5)
    for line in lines(directory):
        amounts = want[line["tenant"], line["project"], line["outcome"]]
        more = (
            1,
            line["cost_pusd"] or 0,
            line["usage"]["prompt_tokens"] or 0,
            len(line["attempts"]),
            sum(one["slot_ns"] for one in line["attempts"]),
        )
        want[line["tenant"], line["project"], line["outcome"]] = [
            a + b for a, b in zip(amounts, more, strict=True)
        ]
    found = ask(
        tmp_path,
        "SELECT tenant, project, outcome, count(*) FILTER (is_serving), coalesce(sum(cost_pusd), 0), "
        "coalesce(sum(prompt_tokens), 0), count(attempt), coalesce(sum(attempt_slot_ns), 0) FROM {} GROUP BY ALL",
    )
    assert {row[:3]: list(row[3:]) for row in found} == dict(want)
    (unpriced,) = ask(tmp_path, "SELECT count(*) FROM {} WHERE is_serving AND cost_pusd IS NULL")
    assert unpriced == (sum(line["cost_pusd"] is None for line in lines(directory)),)


def test_one_row_of_each_call_stands_for_it(tmp_path: pathlib.Path) -> None:
    directory = closed(tmp_path, list(some_calls(random.Random(8), 100)))
    make_all(tmp_path, directory)
    found = ask(tmp_path, "SELECT call_id, attempt, attempts, attempt_backend FROM {} WHERE is_serving")
    assert len(found) == 100
    by_id = {line["call_id"]: line for line in lines(directory)}
    for call_id, number, attempts, backend in found:
        line = by_id[str(call_id)]
        tries = [one["backend"] for one in line["attempts"]]
        assert attempts == len(tries)
        last = max((n for n, one in enumerate(tries, 1) if one == line["backend"]), default=len(tries))
        assert (number, backend) == ((last, tries[last - 1]) if tries else (None, None))


def test_fields_are_those_of_the_record(tmp_path: pathlib.Path) -> None:
    directory = closed(tmp_path, list(some_calls(random.Random(9), 20)))
    make_all(tmp_path, directory)
    same = [*facts.CALL_COLUMNS]
    rows = ask(
        tmp_path,
        f"SELECT {', '.join(same)}, instance_ids, instance_units FROM {{}} WHERE is_serving ORDER BY seq",
    )
    for row, line in zip(rows, lines(directory), strict=True):
        assert row == (
            *[line[name] for name in same],
            [one["id"] for one in line["instances"]],
            [one["units"] for one in line["instances"]],
        )


def test_columns_are_integers_texts_and_flags(tmp_path: pathlib.Path) -> None:
    directory = closed(tmp_path, [call("w-1")])
    maker = make_all(tmp_path, directory)
    (path,) = maker.files(WRITER, 1)
    found = dict(row[:2] for row in ask(tmp_path, "DESCRIBE SELECT * FROM {}"))
    assert tuple(found) == (*COLUMNS, "day")
    texts = "VARCHAR", "VARCHAR[]", "MAP(VARCHAR, VARCHAR)"
    assert set(found.values()) <= {"BIGINT", "BOOLEAN", "DATE", "BIGINT[]", "MAP(VARCHAR, BIGINT)", *texts}
    assert maker.rows(path) == 1


def test_a_segment_over_midnight_has_a_file_for_each_day(tmp_path: pathlib.Path) -> None:
    makes = [call(f"w-{n}", at_ns=AT_NS + n * DAY_NS, cost_pusd=n) for n in (0, 1, 1, 3)]
    directory = closed(tmp_path, makes)
    maker = make_all(tmp_path, directory)
    days = ["day=2026-01-01", "day=2026-01-02", "day=2026-01-04"]
    assert [path.parent.name for path in maker.files(WRITER, 1)] == days
    assert [path.name for path in maker.files(WRITER, 1)] == [f"{WRITER}-0000000000000001.parquet"] * 3
    assert [row[1] for row in ask(tmp_path, "SELECT day, sum(cost_pusd) FROM {} GROUP BY 1 ORDER BY 1")] == [
        0,
        2,
        3,
    ]


def test_a_segment_without_calls_is_known_to_be_done(tmp_path: pathlib.Path) -> None:
    directory = closed(tmp_path, [tick(at_ns=AT_NS + DAY_NS)])
    maker = make_all(tmp_path, directory)
    path, hours = maker.files(WRITER, 1)
    assert (path.parent.name, maker.rows(path)) == ("day=2026-01-01", 0)
    lines = [line.data + b"\n" for line in facts.lines_of(directory, 1) if line.link.kind == "tick"]
    assert (hours.read_bytes(), maker.rows(hours)) == (b"".join(lines), 1)
    maker.remove(facts.name(WRITER, 1))
    assert maker.files(WRITER, 1) == []
    assert not hours.exists()
    make_all(tmp_path, directory)
    assert Maker(tmp_path / "facts").missing(directory) == []


def test_lost_calls_of_a_salvage_are_facts_and_torn_lines_are_none(tmp_path: pathlib.Path) -> None:
    makes = [start(), call("w-1"), admitted("w-2"), call("w-3"), call("w-4")]
    path = write_directory(tmp_path / "journal", makes, per_segment=3)
    torn = path / "0000000000000004.jsonl"
    torn.write_bytes(torn.read_bytes().replace(b'"seq":5', b'"seq":6'))  # the second of its two
    salvage_dead(tmp_path / "journal")
    directory = Directory(path)
    seal_all(directory)
    make_all(tmp_path, directory)
    assert ask(tmp_path, "SELECT call_id, outcome FROM {} ORDER BY seq") == [
        ("w-1", "completed"),
        ("w-3", "completed"),
        ("w-2", "lost"),
    ]


def test_plain_segments_have_no_facts_yet(tmp_path: pathlib.Path) -> None:
    directory = Directory(write_directory(tmp_path / "journal", [start(), call("w-1")]))
    assert Maker(tmp_path / "facts").missing(directory) == []


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_on_the_way_leaves_nothing_that_counts_twice_or_half(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Of two days one file may be in place, or none; the next start removes it and makes both."""
    makes = [call(f"w-{n}", at_ns=AT_NS + n * DAY_NS) for n in range(2)]
    directory = closed(tmp_path, makes)
    rename = pathlib.Path.rename
    done: list[pathlib.Path] = []

    class Killed(BaseException):
        pass

    def rename_or_die(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        if len(done) == renames:
            raise Killed
        done.append(path)
        return rename(path, target)

    crashing = Maker(tmp_path / "facts")
    monkeypatch.setattr(pathlib.Path, "rename", rename_or_die)
    with pytest.raises(Killed):
        crashing.make(directory, 1)
    monkeypatch.undo()
    maker = Maker(tmp_path / "facts")
    assert maker.files(WRITER, 1) == []
    assert maker.missing(directory) == [1]
    maker.make(directory, 1)
    assert ask(tmp_path, "SELECT count(*) FROM {}") == [(2,)]
    assert list((tmp_path / "facts" / facts.MAKING).iterdir()) == []


def test_a_file_that_cannot_be_made_says_which_and_can_be_tried_again(tmp_path: pathlib.Path) -> None:
    directory = closed(tmp_path, [call("w-1", cost_pusd=1 << 60)])
    maker = Maker(tmp_path / "facts")
    path = directory.segment_paths()[0][1]
    good = path.read_bytes()
    huge = Directory(
        write_directory(tmp_path / "other", [start(), call("w-1", response_bytes=1 << 70), stop()])
    )
    seal_all(huge)
    with pytest.raises(FactsError, match=f"{WRITER}-0000000000000001"):
        maker.make(huge, 1)
    assert path.read_bytes() == good
    assert maker.make(directory, 1) == 1
    assert ask(tmp_path, "SELECT cost_pusd FROM {}") == [(1 << 60,)]


def test_the_same_lines_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
    """So two who archive one directory put the same objects."""
    directory = closed(tmp_path, list(some_calls(random.Random(3), 50)), per_segment=1_000)
    (path,) = make_all(tmp_path, directory).files(WRITER, 1)
    first = path.read_bytes()
    shutil.rmtree(tmp_path / "facts")
    make_all(tmp_path, directory)
    assert path.read_bytes() == first


def test_a_file_that_is_none_says_so(tmp_path: pathlib.Path) -> None:
    maker = Maker(tmp_path / "facts")
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(FactsError, match=r"x\.parquet"):
        maker.rows(tmp_path / "x.parquet")
