"""The record is made from its fields in their order: that each stands where its name says is checked here."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable

import msgspec
import pytest

from gateway.openai_api import OpenAIApi
from gateway.tally import Facts, Tally
from metering import chain, record
from metering.record import Admitted, CallRecord
from tests.support import lines


@pytest.mark.parametrize(
    ("function", "maker", "kind"),
    [
        (Tally.record, "_call_record", CallRecord),
        (Tally.admitted, "_admitted", Admitted),
        (OpenAIApi.begin, "facts_in_order", Facts),
    ],
)
def test_the_fields_of_a_struct_stand_in_their_order(
    function: Callable[..., object], maker: str, kind: type[msgspec.Struct]
) -> None:
    source = textwrap.dedent(inspect.getsource(function))
    (made,) = (
        node for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == maker
    )  # fmt: skip
    rows = source.splitlines()
    names = [re.fullmatch(r".*,  # (\w+)", rows[(each.end_lineno or 0) - 1]) for each in made.args]
    assert [name and name[1] for name in names] == list(kind.__struct_fields__)
    assert not made.keywords


def test_a_record_made_in_order_is_a_record() -> None:
    known = lines.call(7, chain.ZEROS)
    fields = msgspec.structs.astuple(known)
    made = record.in_order(CallRecord)(*fields)
    assert isinstance(made, CallRecord)
    assert chain.encode(made) == chain.encode(known)
    assert chain.decode(chain.encode(made)) == known
