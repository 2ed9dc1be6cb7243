"""What may be asked of a model: the generating paths of the API. Pure."""

import msgspec


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One path of the API that is served by a model. name: as records and the reader name it."""

    name: str
    path: str


OPERATIONS = {
    operation.path: operation
    for operation in (
        Operation(name="chat", path="/v1/chat/completions"),
        Operation(name="completions", path="/v1/completions"),
    )
}
"""By path, the client's and the backend's."""
