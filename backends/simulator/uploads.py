"""Forms (multipart/form-data) as the simulator reads them: by splitting at the boundary. Pure.

On purpose not the gateway's reading: what that has changed in a body is seen here by other eyes.
"""

import email.message
import email.policy

from backends.simulator import refusals
from backends.simulator.refusals import Refused, bad_request

Fields = dict[str, str | bytes]


def read_form(body: bytes, content_type: str) -> Fields:
    """Fields by name, files as bytes; of equal ones the last. Raises Refused."""
    boundary = _header("content-type", content_type).get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise bad_request("Missing boundary in multipart.")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))
    fields: Fields = {}
    for part in parts:
        if part.startswith(b"--"):
            return fields
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank:
            break
        name, value = _field(head, content)
        fields[name] = value
    raise Refused(400, "There was an error parsing the body", refusals.INVALID)


def _field(head: bytes, content: bytes) -> tuple[str, str | bytes]:
    """Raises Refused."""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.lower() == "content-disposition":
            disposition = _header(field, value.strip())
            name = disposition.get_param("name", header="content-disposition")
            if isinstance(name, str):
                is_file = disposition.get_filename() is not None
                return name, content if is_file else content.decode("utf-8", "replace")
    raise bad_request('The Content-Disposition header field "name" must be provided.')


def _header(name: str, value: str) -> email.message.Message:
    message = email.message.Message(email.policy.compat32)
    message[name] = value
    return message
