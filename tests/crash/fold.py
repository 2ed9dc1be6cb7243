"""Another host's folder: `python -m tests.crash.fold JOURNALS URL` closes dead journals there and folds all of them.

Exit status 1: a stream is stopped, or could not be brought to its end.
"""

import asyncio
import pathlib
import sys

from metering.folder import Folder
from metering.journal import directories, salvage_dead
from metering.store import Store, StoreUnavailable

TRIES = 20


async def main(journals: str, url: str) -> int:
    root = pathlib.Path(journals)
    salvage_dead(root)
    async with Store(url) as store:
        folder, behind = Folder(store), 1
        for _ in range(TRIES):
            try:
                behind = await folder.fold(directories(root))
            except StoreUnavailable:
                continue
            if not behind:
                break
    print(f"behind={behind} stopped={list(folder.stopped.values())}")
    return bool(behind)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
