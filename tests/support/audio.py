"""Forms with audio, as clients send them, and audio to put into them. Imports nothing of the product."""

import io
import wave

BOUNDARY = b"a1b2c3"
TYPE = "multipart/form-data; boundary=a1b2c3"


def form(*fields: tuple[str, bytes], boundary: bytes = BOUNDARY) -> bytes:
    """A body of these fields; one called `file` has a file name."""
    return b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (boundary, name.encode(), b'; filename="said.wav"' if name == "file" else b"", value)
        for name, value in fields
    ) + (b"--%b--\r\n" % boundary)


def sound(seconds: float, *, rate: int = 8_000) -> bytes:
    """A WAV file of so much silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(1)
        writer.setframerate(rate)
        writer.writeframes(b"\x80" * round(seconds * rate))
    return file.getvalue()
