"""Where an archive keeps its objects: a directory, or S3-compatible storage through obstore.

An object is put once and never overwritten, whole or not at all, and is durable when `put_new` returns. obstore
is imported only where a bucket is named. Its credentials come from where AWS' tools have them: the environment,
a web identity, the container's or the instance's role.
"""

import contextlib
import datetime
import io
import os
import pathlib
import shutil
import urllib.parse
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from metering.files import clear_leftovers, part_of, sync_directory
from metering.units import NS_PER_S

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

S3_SCHEME = "s3"
FILE_SCHEME = "file"

_LEFTOVER_S = 3_600.0
"""A directory may be shared by hosts whose clocks differ."""
_CONNECT = "5s"
_REQUEST = "60s"
_RETRIES = 2
_RETRY = datetime.timedelta(seconds=60)
WHOLE_BYTES_MAX = 32 * 1024 * 1024
"""A larger file goes into a bucket in parts."""
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 2
_COPY_BYTES = 1 << 20


class ArchiveError(Exception):
    """The archive can't be used, or does not hold what it should; the message says which object and why."""


class ArchiveUnavailable(ArchiveError):
    """It can't be reached, read or written now; what it holds is another question."""


class AlreadyThere(ArchiveError):
    """There is an object of this name; it was left as it is."""


class Listed(NamedTuple):
    """An object as a listing tells it. modified_ns: when it was put, wall clock."""

    path: str
    bytes: int
    modified_ns: int


class Objects(Protocol):
    """Objects by path, with `/` between the steps. Every method raises ArchiveUnavailable."""

    def put_new(self, path: str, data: bytes) -> None:
        """Raises AlreadyThere too."""

    def put_file(self, path: str, file: pathlib.Path) -> None:
        """The same of a file of any size, of which little is in memory. Raises AlreadyThere, OSError too."""

    def get(self, path: str) -> bytes | None:
        """None: there is no such object."""

    def list(self, prefix: str) -> list[Listed]:
        """All objects below `prefix`, which ends with `/` or is empty, by path."""

    def delete(self, path: str) -> None:
        """Of an object that is not there, too."""

    def locked_until_ns(self, path: str, /) -> int:
        """Until when nobody can delete this object, wall clock; 0: anybody can, or it is not there."""

    def clear_leftovers(self) -> None:
        """Delete what whoever was killed while putting has left."""


def open_objects(place: str, *, endpoint: str | None = None, region: str | None = None) -> Objects:
    """The objects at `place`: a path, file:///path, or s3://bucket/prefix. Connects to nothing yet.

    endpoint: of storage that is not Amazon's; region: for Amazon's. Raises ArchiveError.
    """
    parts = urllib.parse.urlsplit(place)
    if parts.scheme == S3_SCHEME:
        return BucketObjects(*bucket_of(place), endpoint, region)
    if parts.scheme == FILE_SCHEME:
        return LocalObjects(pathlib.Path(urllib.parse.unquote(parts.path)))
    if "://" in place:
        raise ArchiveError(f"{place} is no archive: that is a path, file:///path or s3://bucket/prefix")
    return LocalObjects(pathlib.Path(place))


def bucket_of(place: str) -> tuple[str, str]:
    """Name and prefix of s3://bucket/prefix."""
    parts = urllib.parse.urlsplit(place)
    return parts.netloc, parts.path.strip("/")


class LocalObjects:
    """Objects as files below `root`. Each is synced with the directories above it before it counts."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root

    def clear_leftovers(self) -> None:
        """As Objects.clear_leftovers."""
        clear_leftovers(self._root, _LEFTOVER_S)

    def put_new(self, path: str, data: bytes) -> None:
        """As Objects.put_new."""
        self._put(path, io.BytesIO(data))

    def put_file(self, path: str, file: pathlib.Path) -> None:
        """As Objects.put_file."""
        with open(file, "rb") as source:
            self._put(path, source)

    def _put(self, path: str, source: BinaryIO) -> None:
        """A link fails where there is a file already, and is there at once or not at all."""
        target = self._root / path
        part = part_of(target)
        with self._told(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(part, "xb") as file:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(part, target)
            except FileExistsError:
                raise AlreadyThere(f"{target} is there already") from None
            finally:
                part.unlink(missing_ok=True)
            for directory in (target.parent, *target.parent.parents):
                sync_directory(directory)
                if directory == self._root.parent:
                    break

    def get(self, path: str) -> bytes | None:
        """As Objects.get."""
        with self._told(path):
            try:
                return (self._root / path).read_bytes()
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> list[Listed]:
        """As Objects.list. Hidden files were never finished."""
        found = []
        with self._told(prefix):
            for directory, _, names in os.walk(self._root / prefix, onerror=_raise_but_missing):
                for name in names:
                    path = pathlib.Path(directory, name)
                    if not name.startswith("."):
                        stat = path.stat()
                        below = path.relative_to(self._root).as_posix()
                        found.append(Listed(below, stat.st_size, stat.st_mtime_ns))
        return sorted(found)

    def locked_until_ns(self, _path: str, /) -> int:
        """As Objects.locked_until_ns: files have no locks."""
        return 0

    def delete(self, path: str) -> None:
        """As Objects.delete."""
        with self._told(path):
            (self._root / path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArchiveUnavailable(f"{self._root / path}: {error.strerror or error}") from error


def _raise_but_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class BucketObjects:
    """Objects of a bucket, below a prefix. Objects are put with If-None-Match, so that the first one stays."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None, region: str | None) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint
        self._region = region
        self._connected: S3Store | None = None

    def put_new(self, path: str, data: bytes) -> None:
        """As Objects.put_new."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._told(path):
            try:
                obstore.put(self._store(), path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                raise AlreadyThere(f"{self._url(path)} is there already") from None

    def put_file(self, path: str, file: pathlib.Path) -> None:
        """As Objects.put_file: a large one in parts under a hidden name, and copied to its own one by the storage.

        Only a copy can be refused where something is there: S3 has no such condition for an upload in parts, as far
        as obstore knows. An upload that fails is called off; of one that was killed storage keeps parts that no
        listing shows, until a lifecycle rule (AbortIncompleteMultipartUpload) clears them.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        if file.stat().st_size <= WHOLE_BYTES_MAX:
            self.put_new(path, file.read_bytes())
            return
        part = part_of(pathlib.Path(path)).as_posix()
        with open(file, "rb") as source, self._told(path):
            try:
                obstore.put(
                    self._store(), part, source, use_multipart=True, chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )  # fmt: skip
                obstore.copy(self._store(), part, path, overwrite=False)
            except AlreadyExistsError:
                raise AlreadyThere(f"{self._url(path)} is there already") from None
            finally:
                self.delete(part)

    def get(self, path: str) -> bytes | None:
        """As Objects.get."""
        import obstore

        with self._told(path):
            try:
                return bytes(obstore.get(self._store(), path).bytes())
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> list[Listed]:
        """As Objects.list."""
        import obstore

        with self._told(prefix):
            pages = obstore.list(self._store(), prefix or None)
            return sorted(
                Listed(one["path"], one["size"], round(one["last_modified"].timestamp()) * NS_PER_S)
                for page in pages
                for one in page
            )

    def clear_leftovers(self) -> None:
        """As Objects.clear_leftovers: a bucket has none."""

    def locked_until_ns(self, _path: str, /) -> int:
        """As Objects.locked_until_ns: what may have locks is asked for by metering/archive/locked.py."""
        return 0

    def delete(self, path: str) -> None:
        """As Objects.delete."""
        import obstore

        with self._told(path), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store(), path)

    def _store(self) -> "S3Store":
        from obstore.store import S3Store

        if self._connected is None:
            config: S3Config = {"copy_if_not_exists": "multipart"}
            if self._endpoint:
                config["endpoint"] = self._endpoint
            if self._region:
                config["region"] = self._region
            self._connected = S3Store(
                self._bucket,
                prefix=self._prefix or None,
                config=config,
                client_options={
                    "allow_http": bool(self._endpoint and self._endpoint.startswith("http:")),
                    "connect_timeout": _CONNECT,
                    "timeout": _REQUEST,
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY},
            )
        return self._connected

    def _url(self, path: str) -> str:
        return "/".join(part for part in (f"{S3_SCHEME}://{self._bucket}", self._prefix, path) if part)

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]  # the rest is the library's inside
            raise ArchiveUnavailable(f"{self._url(path)}: {reason}") from error
