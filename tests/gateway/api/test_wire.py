"""What is read of a request, what is refused, and edits that touch nothing else."""

import dataclasses
import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api import wire
from gateway.api.errors import InvalidRequest
from gateway.api.operations import OPERATIONS, Operation
from gateway.api.wire import Ask, Keeping, read_ask, splice
from tests.support import captures

CHAT = OPERATIONS["/v1/chat/completions"]
JSON_PATHS = [path for path, operation in OPERATIONS.items() if not operation.form]
RESPONSES = OPERATIONS["/v1/responses"]
ACTED_ON = CHAT.acted_on

BASE: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}


def ask(operation: Operation = CHAT, **fields: Any) -> Ask:
    return read_ask(json.dumps(BASE | fields).encode(), operation)


def refused(body: bytes, operation: Operation = CHAT) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_ask(body, operation)
    assert caught.value.status == 400
    return caught.value


# -- reading


def test_the_fields_acted_on() -> None:
    found = ask(stream=True, stream_options={"include_usage": True}, max_tokens=7, n=2, seed=None, user="u")
    assert (found.model, found.stream, found.include_usage, found.max_tokens, found.n) == (
        "m1",
        True,
        True,
        7,
        2,
    )
    assert found.keys == ()
    assert ask(top_k=1, logprobs=True, min_p=None, seed=0).keys == ("logprobs", "seed")


def test_what_is_not_given() -> None:
    found = ask()
    assert (found.stream, found.include_usage, found.max_tokens, found.n) == (False, False, None, None)


@pytest.mark.parametrize(
    ("fields", "stream", "include_usage"),
    [
        ({"stream": None}, False, False),
        (
            {"stream": False, "stream_options": {"include_usage": True}},
            False,
            False,
        ),  # the backend refuses it
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": None}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
    ],
)
def test_whether_the_client_wants_usage(fields: dict[str, Any], stream: bool, include_usage: bool) -> None:
    found = ask(**fields)
    assert (found.stream, found.include_usage) == (stream, include_usage)


@pytest.mark.parametrize(
    ("fields", "max_tokens", "length"),
    [
        ({}, None, None),
        ({"max_tokens": 5}, 5, "max_tokens"),
        ({"max_completion_tokens": 6}, 6, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5, "max_tokens"),
        ({"max_tokens": 2**53}, 2**53, "max_tokens"),
        ({"max_tokens": 0}, 0, "max_tokens"),  # the prompt alone, echoed
    ],
)
def test_max_completion_tokens_wins(
    fields: dict[str, Any], max_tokens: int | None, length: str | None
) -> None:
    found = ask(**fields)
    assert (found.max_tokens, found.length) == (max_tokens, length)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": ["m1"]}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        *(({name: value}, name) for name in ("max_tokens", "max_completion_tokens", "n")
          for value in (-1, "100", True, 1.5, 1e18, 10**400, [1], {})),
        ({"n": 0}, "n"),
        ({"max_tokens": 2**53 + 1}, "max_tokens"),
        ({"n": 129}, "n"),
        ({"n": 10**9}, "n"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(json.dumps(BASE | fields).encode())
    assert error.param == param
    assert param in error.message


def test_a_model_must_be_given() -> None:
    assert refused(b'{"messages":[]}').param == "model"
    assert refused(b"{}").param == "model"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"7", b"not json", b'{"model":"m1"}x', b'{"model":"m1",}', b'{"model":"m1"',
     b'\xef\xbb\xbf{"model":"m1"}', b'{"model":"m1","t":NaN}', b'{"model":"m1","t":Infinity}', b"{'model':'m1'}",
     b'{"model":"m1","t":-Infinity}', b'{"model":"m1","c":"\xff"}', b'{"model":"m1","\xff":1}', b'{"model":"\xff"}',
     b'{"model":"m1","c":"\xed\xa0\x80"}', b'{"model":"\\ud800"}', b'{"model":"m1","c":"\\ud800"}',
     b'{"model":"m1","c":[{"d":"\\udc00 x"}]}', b'{"model":"m1","c":"\\ud800\\u0041"}', b'{"model":"m1","\\ud800":1}',
     b'{"model":"m1","c":"line\nbreak"}',
     b'{"model":"m1","a":01}', b'{"model":"m1","a":"\\q"}', b'{"model":"m1","\\q":1}', b'{"model":"m1" "n":1}',
     b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
     b'{"model":"m1","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    refused(body)


@pytest.mark.parametrize(
    "name", ["chat", "chat_stream_usage", "chat_tool", "chat_stop", "completions_prompts"]
)
def test_recorded_requests_are_read(name: str) -> None:
    body = captures.load(name).request_body
    value = json.loads(body)
    found = read_ask(body, CHAT)
    assert found.model == value["model"]
    assert splice(body, found, model=None, include_usage=False) is body


# -- keys that stand twice

DEEP = b'{"a":[{"model":"x","b":"\\"]}"}]}'


def escaped(name: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in name)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5000])
@pytest.mark.parametrize("name", ["model", "n", "max_tokens", "stream", "stream_options.include_usage"])
def test_a_number_that_nobody_can_hold_is_refused(name: str, number: bytes) -> None:
    outer, _, inner = name.partition(".")
    value = b'{"%b":%b}' % (inner.encode(), number) if inner else number
    first = b"" if outer == "model" else b'"model":"m1",'
    assert refused(b'{%b"%b":%b}' % (first, outer.encode(), value)).param == name


@pytest.mark.parametrize("name", sorted(ACTED_ON))
@pytest.mark.parametrize("spell", [str, escaped, lambda name: name[:-1] + escaped(name[-1])])
def test_a_second_of_a_key_acted_on_is_refused(name: str, spell: Any) -> None:
    first = b'"model":"m1",' if name != "model" else b""
    value = {"model": b'"m1"', "stream": b"true", "stream_options": b"{}"}.get(name, b"1")
    again = b'"%b":%b' % (spell(name).encode(), value)
    plain = b'"%b":%b' % (name.encode(), value)
    for body in (b"{%b%b,%b}" % (first, plain, again), b'{%b%b,"x":%b,%b}' % (first, again, DEEP, plain)):
        error = refused(body)
        assert (error.param, error.message) == (name, f"{name} is given twice")


@pytest.mark.parametrize("again", [b'"include_usage":true', b'"include\\u005fusage":false'])
def test_a_second_include_usage_is_refused(again: bytes) -> None:
    error = refused(
        b'{"model":"m1","stream":true,"stream_options":{"include_usage":true,"x":[1], %b}}' % again
    )
    assert error.param == "stream_options.include_usage"


@pytest.mark.parametrize(
    "other", [b'"x":1', b'"x":{"a":[1,"}"]}', b'"x":"\\\\"', b'"include_usage":1', b'"x" : [ ] ']
)
def test_a_second_of_another_key_passes_as_it_came(other: bytes) -> None:
    body = b'{%b,"model":"m1",%b, "n" : 2 ,%b}' % (other, DEEP.join((b'"deep":', b"")), other)
    found = read_ask(body, CHAT)
    assert (found.model, found.n) == ("m1", 2)
    assert splice(body, found, model="m2", include_usage=False) == body.replace(b'"m1"', b'"m2"')


def test_a_key_spelt_with_escapes_is_the_same_key() -> None:
    body = b'{"mod\\u0065l":"m1","\\u006e":3}'
    found = read_ask(body, CHAT)
    assert (found.model, found.n) == ("m1", 3)
    assert splice(body, found, model="m2", include_usage=False) == b'{"mod\\u0065l":"m2","\\u006e":3}'


def spelt(name: str, how: int) -> str:
    """A key as JSON may spell it: plain, or with one character or all of them escaped."""
    return name if how == 0 else name[:-1] + escaped(name[-1]) if how == 1 else escaped(name)


KEYS = st.sampled_from([*sorted(ACTED_ON), "x", "messages", "include_usage"])
TEXTS = st.sampled_from(
    ["1", "1", "true", "null", '"a"', '{"model":"x","n":1}', '["model","n"]', '"\\u006e"', '""']
)
GAPS = st.sampled_from(["", "", "", " ", "\n  "])


@given(
    st.lists(st.tuples(KEYS, st.integers(0, 2), TEXTS, GAPS, GAPS, GAPS), max_size=9),
    st.booleans(),
    st.sampled_from(["/v1/chat/completions", "/v1/responses", "/v1/embeddings"]),
)
def test_no_second_key_is_overlooked_however_the_body_is_laid_out(
    members: list[tuple[str, int, str, str, str, str]], long: bool, path: str
) -> None:
    """The standard library's parser, which tells all pairs, is the judge."""
    parts = [
        '"model":"m1"',
        *(f'{a}"{spelt(name, how)}"{b}:{c}{value}' for name, how, value, a, b, c in members),
    ]
    body = "{" + ",".join(parts) + (f',"pad":"{"x" * 5000}"' if long else "") + "}"
    operation = OPERATIONS[path]
    pairs: list[list[tuple[str, Any]]] = []
    json.loads(body, object_pairs_hook=lambda found: pairs.append(found) or dict(found))
    names = [name for name, _ in pairs[-1]]
    twice = {name for name in names if names.count(name) > 1} & operation.acted_on
    try:
        read_ask(body.encode(), operation)
        said = ""
    except InvalidRequest as error:
        said = error.message
    assert ("is given twice" in said) is bool(twice)


# -- what differs by operation


@pytest.mark.parametrize(
    ("path", "fields", "max_tokens", "length"),
    [
        ("/v1/completions", {"max_tokens": 5, "max_completion_tokens": "other"}, 5, "max_tokens"),
        ("/v1/responses", {"max_output_tokens": 6, "max_tokens": "other"}, 6, "max_output_tokens"),
        ("/v1/messages", {"max_tokens": 7, "max_output_tokens": []}, 7, "max_tokens"),
        ("/v1/embeddings", {"max_tokens": "other"}, None, None),
        ("/v1/chat/completions", {"max_tokens": 5, "max_completion_tokens": 6}, 6, "max_completion_tokens"),
        ("/v1/chat/completions", {"max_tokens": 5, "max_completion_tokens": None}, 5, "max_tokens"),
    ],
)
def test_each_operation_has_its_own_bound(
    path: str, fields: dict[str, Any], max_tokens: int | None, length: str | None
) -> None:
    found = ask(OPERATIONS[path], **fields)
    assert (found.max_tokens, found.length) == (max_tokens, length)


@pytest.mark.parametrize("path", JSON_PATHS)
def test_what_an_operation_does_not_act_on_is_not_looked_at(path: str) -> None:
    operation = OPERATIONS[path]
    odd = {name: {"odd": [1]} for name in ("stream", "stream_options", "n", "max_tokens", "max_output_tokens")
           if name not in operation.acted_on}  # fmt: skip
    found = ask(operation, **odd)
    assert (found.stream, found.n, found.max_tokens) == (False, None, None)
    for name in operation.acted_on - {"model"}:
        assert refused(json.dumps(BASE | {name: ["odd"]}).encode(), operation).param == name


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_stream_that_tells_its_usage_unasked_is_not_asked_for_it(path: str) -> None:
    found = ask(OPERATIONS[path], stream=True, stream_options={"include_obfuscation": False})
    assert (found.stream, found.include_usage, found.options) == (True, True, None)
    assert not ask(OPERATIONS[path]).include_usage


@pytest.mark.parametrize("path", JSON_PATHS)
def test_a_model_is_needed_and_renamed_everywhere(path: str) -> None:
    operation = OPERATIONS[path]
    assert refused(b'{"prompt":"x"}', operation).param == "model"
    for body in (
        b'{"prompt":"x","model":"m1"}',
        b'{"prompt": "\xc3\xa9", "model": "m1"}',
        b'{"model" :"m1"}',
    ):
        found = read_ask(body, operation)
        assert splice(body, found, model="m22", include_usage=False) == body.replace(b"m1", b"m22")


# -- splicing

SPACE = st.text(" \t\r\n", max_size=2)
NAMES = st.text(string.ascii_letters + '"\\é🙂_', max_size=6).filter(lambda name: name not in ACTED_ON)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10) | st.sampled_from(['"model":"x"', "}", "]{", "\\", "null"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of an object as text: with the spaces around key and value, and how it is spelt."""

    name: str
    value: str
    spaces: tuple[str, str, str, str]
    ascii_only: bool

    def text(self, value: str | None = None) -> str:
        before, behind, between, after = self.spaces
        name = json.dumps(self.name, ensure_ascii=self.ascii_only)
        return f"{before}{name}{behind}:{between}{self.value if value is None else value}{after}"


def join(members: list[Member], values: dict[str, str]) -> str:
    return "{" + ",".join(member.text(values.get(member.name)) for member in members) + "}"


@st.composite
def members(draw: st.DrawFn, values: dict[str, str]) -> list[Member]:
    """Members with these names and values as text, some others, in any order and spelling."""
    others = draw(st.dictionaries(NAMES, VALUES, max_size=4))
    ascii_only = draw(st.booleans())
    texts = {name: json.dumps(value, ensure_ascii=ascii_only) for name, value in others.items()} | values
    spaces = st.tuples(SPACE, SPACE, SPACE, SPACE)
    return [
        Member(name, texts[name], draw(spaces), ascii_only) for name in draw(st.permutations(list(texts)))
    ]


@given(st.data())
def test_splicing_replaces_exactly_its_fields(data: st.DataObject) -> None:
    """The body is built from pieces, so that the result is known to the byte without any parser."""
    options = data.draw(st.sampled_from(["absent", "null", "object", "false", "true", "none"]))
    inner_values = {"false": "false", "true": "true", "none": "null"}.get(options)
    inner = data.draw(members({"include_usage": inner_values} if inner_values else {}))
    values = {"model": '"m1"', "stream": "true"}
    if data.draw(st.booleans()):
        values["cache_salt"] = data.draw(st.sampled_from(['"mine"', "null"]))
    if data.draw(st.booleans()):
        values["max_tokens"] = data.draw(st.sampled_from(["7", "null"]))
    if options != "absent":
        values["stream_options"] = "null" if options == "null" else join(inner, {})
    outer = data.draw(members(values))
    body = join(outer, {}).encode()
    new_model = data.draw(st.none() | st.text(max_size=8))
    include_usage = data.draw(st.booleans())
    salt, bound = data.draw(st.none() | st.just(b'"ours"')), data.draw(st.none() | st.just(b"99"))
    fields = [(name, value) for name, value in (("cache_salt", salt), ("max_tokens", bound)) if value]

    found = read_ask(body, CHAT)
    result = splice(body, found, model=new_model, include_usage=include_usage, fields=fields)

    replaced = {} if new_model is None else {"model": json.dumps(new_model, ensure_ascii=False)}
    if include_usage and options == "null":
        replaced["stream_options"] = '{"include_usage":true}'
    elif include_usage and options == "object":
        comma = "," if inner else ""
        replaced["stream_options"] = '{"include_usage":true' + comma + join(inner, {})[1:]
    elif include_usage and options != "absent":
        replaced["stream_options"] = join(inner, {"include_usage": "true"})
    replaced |= {name: value.decode() for name, value in fields if name in values}
    expected = join(outer, replaced)
    added = "".join(f'"{name}":{value.decode()},' for name, value in fields if name not in values)
    usage = '"stream_options":{"include_usage":true},' if include_usage and options == "absent" else ""
    expected = "{" + added + usage + expected[1:]
    assert found.salt == ("mine" if values.get("cache_salt") == '"mine"' else None)

    assert found.include_usage is (options == "true")
    assert json.loads(result) == json.loads(expected)
    if new_model is None or new_model.isprintable():  # control characters may be escaped in more than one way
        assert result == expected.encode()


USUAL_NAMES = [
    "model",
    "stream",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "stream_options",
    "seed",
    "messages",
]
USUAL_VALUES = [
    '"m1"', '""', "null", "true", "false", "0", "1", "-1", "5.0", "1.5", "129", "9007199254740993", "1e999", "[]",
    '{"model":"m2","n":2}', '"say \\"model\\""',
    '"\\u0041"', '"é"', '"' + "x" * 300 + '"', "{", '{"include_usage":true}',
]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(USUAL_NAMES), st.sampled_from(USUAL_VALUES)), max_size=5),
    st.sampled_from(["", "{", "}", " ", "x"]),
    st.sampled_from([CHAT, OPERATIONS["/v1/completions"], OPERATIONS["/v1/embeddings"]]),
)
@settings(max_examples=1500, deadline=None)
def test_what_is_read_the_quick_way_is_what_any_body_is_read_as(
    given_members: list[tuple[str, str]], end: str, operation: Operation
) -> None:
    text = ",".join(f'"{name}":{value}' for name, value in [("model", '"m1"'), *given_members])
    body = ("{" + text + "}" + end).encode()
    quick = wire.read_usual(body, operation)
    if quick is None:
        return
    found = wire.read_any(body, operation)
    assert msgspec.structs.asdict(quick) == msgspec.structs.asdict(found) | {"members": None}


@pytest.mark.parametrize(
    ("body", "usual"),
    [
        (b'{"model":"m1","messages":[]}', True),
        (b'{"model":"m1","stream":true,"max_tokens":null,"n":1}', True),
        (b'{"model":"m1","x":"' + b"x" * 5000 + b'"}', False),
        (b'{"model":"m1","model":"m2"}', False),
        (b'{"model":"m1","n":1,"n":null}', False),
        (b'{"model":"m1","seed":1}', False),
        (b'{"model":"m1","stream_options":null}', False),
        (b'{"model":"m1","x":"\\u0022"}', False),
        ('{"model":"m1","x":"é"}'.encode(), False),
        (b'{"model":7}', False),
    ],
)
def test_which_bodies_are_read_the_quick_way(body: bytes, usual: bool) -> None:
    assert (wire.read_usual(body, CHAT) is not None) is usual


@given(VALUES, st.booleans(), st.integers(0, 3), st.data())
def test_a_broken_body_is_refused_or_read_as_json_reads_it(
    value: Any, ascii_only: bool, indent: int, data: st.DataObject
) -> None:
    text = bytearray(json.dumps(BASE | {"x": value}, ensure_ascii=ascii_only, indent=indent or None).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not text:
            return
    try:
        found = read_ask(bytes(text), CHAT)
    except InvalidRequest:
        return
    read = json.loads(bytes(text))
    assert read["model"] == found.model
    assert json.loads(splice(bytes(text), found, model="m2", include_usage=True)) == read | {
        "model": "m2",
        "stream_options": (read.get("stream_options") or {}) | {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("options", "spliced"),
    [
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{"x":1,"include_usage": null }', b'{"x":1,"include_usage": true }'),
        (b'{"x":1}', b'{"include_usage":true,"x":1}'),
        (b"{ }", b'{"include_usage":true }'),
        (b"null", b'{"include_usage":true}'),
    ],
)
@pytest.mark.parametrize("behind", [b"", b" "])
def test_usage_is_asked_for_in_the_clients_options(options: bytes, spliced: bytes, behind: bytes) -> None:
    body = b'{"model":"m1","stream":true,"stream_options":%b%b}' % (options, behind)
    found = read_ask(body, CHAT)
    assert splice(body, found, model=None, include_usage=True) == body.replace(options, spliced)


def test_large_and_exact_numbers_keep_their_bytes() -> None:
    body = b'{"model":"m1","seed":12345678901234567890,"temperature":1.0,"x":{"a":[1,2.50,null]}}'
    assert splice(body, read_ask(body, CHAT), model="m2", include_usage=False) == body.replace(b"m1", b"m2")


# -- responses that a server keeps


@pytest.mark.parametrize(
    ("fields", "previous", "stored"),
    [
        ({}, None, True),
        ({"store": True, "previous_response_id": None, "background": None}, None, True),
        ({"store": None, "background": False}, None, False),  # as vLLM takes it
        ({"store": False, "previous_response_id": "resp_1"}, "resp_1", False),
        ({"previous_response_id": ""}, "", True),
    ],
)
def test_what_is_wanted_of_kept_responses(fields: dict[str, Any], previous: str | None, stored: bool) -> None:
    assert ask(RESPONSES, **fields).keeping == Keeping(previous=previous, stored=stored)
    assert ask(CHAT, **fields).keeping is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": "resp_1"}, "request_id"),
        ({"request_id": None}, "request_id"),
        ({"background": True}, "background"),
        ({"background": 1}, "background"),
        ({"store": "yes"}, "store"),
        ({"previous_response_id": 7}, "previous_response_id"),
    ],
)
def test_what_no_request_for_a_response_may_say(fields: dict[str, Any], param: str) -> None:
    assert refused(json.dumps(BASE | fields).encode(), RESPONSES).param == param
    assert ask(CHAT, **fields)  # there it means nothing


@pytest.mark.parametrize("name", ["background", "previous_response_id", "request_id", "store"])
def test_none_of_it_may_stand_twice(name: str) -> None:
    body = b'{"model":"m1","%b":null,"input":"hi","%b":null}' % (name.encode(), name.encode())
    assert refused(body, RESPONSES).param in (name, "request_id")


@pytest.mark.parametrize("body", [b'{"model":"m1","input":"hi"}', b' \n{ "input":"{" , "model": "m1" }\n'])
def test_a_response_is_named_and_all_else_keeps_its_bytes(body: bytes) -> None:
    found = read_ask(body, RESPONSES)
    named = splice(body, found, model=None, include_usage=False, response_id="resp_1")
    assert named == body.replace(b"{", b'{"request_id":"resp_1",', 1)
    both = splice(body, found, model="m2", include_usage=False, response_id="resp_1")
    assert both == named.replace(b'"m1"', b'"m2"')


# -- what keeps prompts apart


@pytest.mark.parametrize(
    ("body", "fields", "sent"),
    [
        (b'{"model":"m1"}', [("cache_salt", b'"s"')], b'{"cache_salt":"s","model":"m1"}'),
        (b' {"model":"m1","max_tokens":null}', [("max_tokens", b"9")], b' {"model":"m1","max_tokens":9}'),
        (b'{"model":"m1","cache_salt" : "c"}', [("cache_salt", b'"s"')], b'{"model":"m1","cache_salt" : "s"}'),
        (
            b'{"model":"m1"}', [("cache_salt", b'"s"'), ("max_tokens", b"9")],
            b'{"cache_salt":"s","max_tokens":9,"model":"m1"}',
        ),
    ],
)  # fmt: skip
def test_what_the_gateway_says_itself_stands_in_the_place_of_the_clients(
    body: bytes, fields: list[tuple[str, bytes]], sent: bytes
) -> None:
    assert splice(body, read_ask(body, CHAT), model=None, include_usage=False, fields=fields) == sent


@pytest.mark.parametrize("name", ["cache_salt", "cache\\u005fsalt"])
def test_a_second_salt_is_refused_and_so_is_one_that_is_no_text(name: str) -> None:
    twice = f'{{"model":"m1","cache_salt":"a","{name}":"b"}}'.encode()
    with pytest.raises(InvalidRequest, match="twice"):
        read_ask(twice, CHAT)
    with pytest.raises(InvalidRequest, match="cache_salt must be a string"):
        read_ask(f'{{"model":"m1","{name}":7}}'.encode(), CHAT)


def test_a_salt_is_read_only_where_servers_read_it() -> None:
    body = b'{"model":"m1","cache_salt":"mine","input":"x"}'
    salted = {path for path, operation in OPERATIONS.items() if operation.salted}
    assert salted == {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
    for path, operation in OPERATIONS.items():
        if not operation.form:
            assert read_ask(body, operation).salt == ("mine" if path in salted else None)
