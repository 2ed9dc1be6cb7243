"""The paths of the API: one name for what is the same, and the paths that the recorded server has."""

import json

from gateway.api.errors import Shape
from gateway.api.operations import ALL_OPERATIONS, OPERATIONS
from tests.support import captures


def test_every_path_is_found_by_itself() -> None:
    assert all(operation.path == path for path, operation in ALL_OPERATIONS.items())
    assert len({(operation.name, path) for path, operation in ALL_OPERATIONS.items()}) == len(ALL_OPERATIONS)


def test_each_name_means_one_thing_wherever_it_stands() -> None:
    for operation in OPERATIONS.values():
        for other in OPERATIONS.values():
            if other.name == operation.name:
                assert (other.answer, other.acted_on, other.errors) == (
                    operation.answer, operation.acted_on, operation.errors,
                )  # fmt: skip


def test_only_what_is_generated_is_streamed_or_bounded() -> None:
    for operation in OPERATIONS.values():
        assert operation.streams is operation.answer.generates
        assert bool(operation.lengths) is operation.answer.generates
        assert not operation.usage_option or operation.streams


def test_what_is_asked_for_by_its_id_costs_nothing_and_is_kept_no_further() -> None:
    by_id = [one for path, one in ALL_OPERATIONS.items() if path not in OPERATIONS]
    assert [(one.name, one.method) for one in by_id] == [
        ("responses.retrieve", "GET"),
        ("responses.cancel", "POST"),
    ]
    for operation in by_id:
        assert not operation.answer.costs_tokens
        assert not operation.keeps
    assert [one.name for one in OPERATIONS.values() if one.keeps] == ["responses"]


def test_anthropics_paths_speak_as_anthropic_does() -> None:
    shapes = {path for path, operation in OPERATIONS.items() if operation.errors is Shape.ANTHROPIC}
    assert shapes == {"/v1/messages", "/v1/messages/count_tokens"}
    named = {path: operation.headers for path, operation in OPERATIONS.items() if operation.headers}
    assert {
        path for path, headers in named.items() if any(b"anthropic" in name for name in headers)
    } == shapes
    # The upstream looks for it at the end, where a body is not JSON.
    forms = {path for path, operation in OPERATIONS.items() if operation.form}
    assert {path for path, headers in named.items() if headers[-1] == b"content-type"} == forms
    assert {path for path, operation in OPERATIONS.items() if operation.id_header == b"request-id"} == shapes


def test_the_recorded_server_has_every_path() -> None:
    answered = set()
    for directory in captures.SUITES.values():
        answered |= {e["path"] for e in captures.index(directory).values() if e["status"] == 200}
    assert {path for path, operation in OPERATIONS.items() if not operation.form} <= answered


def test_recorded_requests_are_understood() -> None:
    for directory in captures.SUITES.values():
        for name, entry in captures.index(directory).items():
            if entry["path"] in OPERATIONS and entry["status"] == 200:
                body = json.loads(captures.load(name, directory).request_body)
                assert entry["stream"] is bool(body.get("stream") and OPERATIONS[entry["path"]].streams)
