"""The scripts that run in the store, as they lie in metering/data."""

import importlib.resources


def lua(name: str) -> str:
    """The text of one: "post" is that of data/post.lua."""
    return importlib.resources.files("metering").joinpath(f"data/{name}.lua").read_text("utf-8")
