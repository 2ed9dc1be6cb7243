"""The files of a writer's directory in either form, plain or sealed. zstd is all that it needs besides."""

import pathlib

import zstandard


def segments(directory: pathlib.Path) -> list[pathlib.Path]:
    """The segments in order, of two forms the plain one, then the salvage."""
    found = {path.name.removesuffix(".zst"): path for path in directory.glob("[0-9]*.jsonl.zst")}
    found |= {path.name: path for path in directory.glob("[0-9]*.jsonl")}
    return [found[name] for name in sorted(found)] + sorted(directory.glob("salvage.jsonl"))


def read(path: pathlib.Path, offset: int = 0) -> bytes:
    """A file's bytes from `offset` on, as they were written; of one that was sealed since it was listed too."""
    if path.suffix != ".zst":
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            path = path.with_name(path.name + ".zst")
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())[offset:]
