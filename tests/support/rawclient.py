"""A client of the gateway that keeps the bytes: raw TCP, its own de-chunking. Imports nothing of the product."""

import asyncio
import contextlib
import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Got:
    """A response. complete: its framing said that this was all."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool


class RawClient:
    """One keep-alive connection."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: object, **headers: str) -> Got:
        """POST JSON and read the whole answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        data = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1", "host: gateway", f"authorization: Bearer {self._key}",
            "content-type: application/json", f"content-length: {len(data)}",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]  # fmt: skip
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return await self._read()

    async def _read(self) -> Got:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        status = int(head[0].split()[1])
        if "content-length" in headers:
            return Got(status, headers, await self._reader.readexactly(int(headers["content-length"])), True)
        body = b""
        try:
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                body += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return Got(status, headers, body, False)
        return Got(status, headers, body, True)

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
