"""A file on its way to a client: sent while it is made, as fast as it is taken.

    head ─▶ pieces, but for the last ─▶ the journal tells what was sent ─▶ the last piece, the end

Whoever has the end of a file has one that the journal knows, by its digest. A file that ends without it was cut
short: the connection is closed in its midst.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from gateway.api.errors import JournalFull
from gateway.api.openai_api import request_id_of
from gateway.faces.answers import Sent
from gateway.faces.faces import Held
from gateway.faces.reader import ReadError, Reading
from metering.logs import log

logger = logging.getLogger("weighbridge.faces")


class File(Held):
    """reading: makes it; held: let go of once it has left, or will not; tell: has it told, or raises JournalFull."""

    def __init__(
        self,
        request: Request,
        reading: Reading,
        held: contextlib.AsyncExitStack,
        tell: Callable[[Sent], Awaitable[None]],
    ) -> None:
        self.status_code = int(HTTPStatus.OK)
        self.media_type = reading.answer.media_type
        self.background = None
        self.init_headers(
            {
                "content-disposition": f'attachment; filename="{reading.answer.file_name}"',
                "x-request-id": request_id_of(request),
            }
        )
        self._reading = reading
        self._held = held
        self._tell = tell

    async def let_go(self) -> None:
        """It will not leave."""
        await self._held.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. On an error it returns without the end, upon which the server closes the connection."""
        try:
            async with self._held:
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )
                if scope["method"] == "HEAD":
                    await send({"type": "http.response.body", "body": b""})
                else:
                    await self._while_there(receive, self._pump(send))
        except (ReadError, JournalFull) as error:
            log(logger, logging.ERROR, "file cut short", path=scope["path"], reason=str(error))

    async def _while_there(self, receive: Receive, sending: Awaitable[None]) -> None:
        """Send, for as long as the client is there."""
        pump, watch = asyncio.ensure_future(sending), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            watch.cancel()
            await asyncio.wait({pump, watch})
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        last = b""
        async with contextlib.aclosing(self._reading.pieces()) as pieces:
            async for piece in pieces:
                if last:
                    await send({"type": "http.response.body", "body": last, "more_body": True})
                last = piece
        assert self._reading.sent is not None
        await self._tell(self._reading.sent)
        await send({"type": "http.response.body", "body": last})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
