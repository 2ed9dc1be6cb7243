import base64
import hashlib
import json

from backends.simulator.log import Log


def lines(log: Log, since: int = 1, *, raw: bool = False) -> list[dict]:
    return [json.loads(line) for line in log.dump(since=since, raw=raw)]


def test_an_entry_says_what_was_seen_and_sent() -> None:
    log = Log(10, 1_000)
    recording = log.open(5, "id-1", "/v1/completions", b"{}")
    recording.sent(b"abc")
    recording.sent(b"def")
    (entry,) = lines(log)
    assert entry["n"] == 1
    assert entry["request_id"] == "id-1"
    assert entry["body_sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert entry["bytes_sent"] == 6
    assert entry["sent_sha256"] == hashlib.sha256(b"abcdef").hexdigest()
    assert (entry["outcome"], entry["ended_ns"]) == ("open", None)
    assert "raw" not in entry
    log.close(recording, "completed", 9)
    (entry,) = lines(log, raw=True)
    assert (entry["outcome"], entry["ended_ns"]) == ("completed", 9)
    assert base64.b64decode(entry["raw"]) == b"abcdef"


def test_the_oldest_entries_and_bodies_go_first() -> None:
    log = Log(3, 25)
    for n in range(5):
        recording = log.open(n, None, "/", b"")
        recording.sent(b"x" * 10)
        log.close(recording, "completed", n)
    kept = lines(log, raw=True)
    assert [entry["n"] for entry in kept] == [3, 4, 5]
    assert [entry["raw"] is None for entry in kept] == [True, False, False]
    assert all(entry["bytes_sent"] == 10 for entry in kept)


def test_since_and_clear() -> None:
    log = Log(10, 10)
    for n in range(4):
        log.open(n, None, "/", b"")
    assert [entry["n"] for entry in lines(log, since=3)] == [3, 4]
    log.clear()
    assert lines(log) == []
    assert log.open(9, None, "/", b"").entry.n == 5


def test_what_is_sent_after_its_body_was_thrown_away_still_counts() -> None:
    log = Log(10, 0)
    recording = log.open(0, None, "/", b"")
    recording.sent(b"ab")
    log.close(recording, "completed", 1)
    recording.sent(b"c")
    (entry,) = lines(log, raw=True)
    assert entry["raw"] is None
    assert entry["sent_sha256"] == hashlib.sha256(b"abc").hexdigest()
