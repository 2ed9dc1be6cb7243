"""A backend as the configuration names it."""

import pytest

from backends.model import Backend


@pytest.mark.parametrize(("url", "address"), [
    ("http://127.0.0.1:8000", ("127.0.0.1", 8000)),
    ("http://vllm", ("vllm", 80)),
    ("http://[::1]:8000", ("::1", 8000)),
    ("https://vllm", ("vllm", 443)),
    ("HTTPS://vllm:8443", ("vllm", 8443)),
])  # fmt: skip
def test_its_address(url: str, address: tuple[str, int]) -> None:
    assert Backend(name="a", url=url, model="m").address() == address


@pytest.mark.parametrize(("url", "tls"), [("http://a", False), ("https://a", True), ("HTTPS://a", True)])
def test_its_transport(url: str, tls: bool) -> None:
    assert Backend(name="a", url=url, model="m").tls is tls
