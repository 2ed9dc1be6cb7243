"""What a path that is not served may have meant. Pure.

Most of them are a wrong base URL: one that ends in /v1 for a client that adds it itself (Anthropic's), one that lacks
it for a client that does not (OpenAI's), or a slash too many.
"""

import itertools
from collections.abc import Callable


def meant(path: str, is_served: Callable[[str], bool]) -> str | None:
    """The path that this one is under the right base URL; None: it is none of ours under any."""
    steps = [step for step in path.split("/") if step]
    rest = "/".join(itertools.dropwhile("v1".__eq__, steps))
    return next(filter(is_served, (f"/v1/{rest}", f"/{rest}")), None)
