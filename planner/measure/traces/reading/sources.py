"""Text of a file, piece by piece: its format by its first bytes, and the progress of reading."""

from __future__ import annotations

import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import SEEK_CUR
from pathlib import Path
from typing import BinaryIO, TypeAlias

from costmodel.errors import SpecError

Progress: TypeAlias = Callable[[float], None]
"""Called with the fraction of the bytes that have been read."""

PIECE_BYTES = 1 << 20
"""Bytes read at once; unpacked text comes in pieces of the same size."""

GZIP = b"\x1f\x8b"
GZIP_WINDOW = 31
"""zlib's code for gzip with its header."""

EXPORT = "Record with torch.profiler and write with export_chrome_trace, to .json or .json.gz."
UNPACK = "Unpack it first; .json and .json.gz are read as they are."
OTHER_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"SQLite format 3\x00", "is a database, as NVIDIA Nsight Systems exports it", EXPORT),
    (b"PK\x03\x04", "is a ZIP archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "is packed with zstd", UNPACK),
    (b"\xfd7zXZ\x00", "is packed with xz", UNPACK),
    (b"BZh", "is packed with bzip2", UNPACK),
    (b"PAR1", "is a Parquet file", EXPORT),
    (b"\x80\x02", "is a pickle, which could run code and is never loaded", EXPORT),
    (b"\x80\x03", "is a pickle, which could run code and is never loaded", EXPORT),
    (b"\x80\x04", "is a pickle, which could run code and is never loaded", EXPORT),
    (b"\x80\x05", "is a pickle, which could run code and is never loaded", EXPORT),
    (b"\x0a", "is a protocol buffer, such as an XPlane of the XLA profiler", EXPORT),
    (b"<", "is a page, not a trace", EXPORT),
)
"""First bytes of other formats, their description, and the advice to the user."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Source:
    """
    Text of a file, in pieces.

    Parameters
    ----------
    path
        The file.
    progress
        Called repeatedly with the fraction that has been read.

    Attributes
    ----------
    broken
        Fault of the gzip data, "" while there is none; the text before it has been returned.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.broken = ""
        self._path, self._progress = path, progress

    def __iter__(self) -> Iterator[str]:
        """
        Yield pieces of text.

        Raises
        ------
        SpecError
            If the file cannot be read, is empty, or is another format.
        """
        if str(self._path) == "-":
            raise SpecError("-", "standard input is not read.", "Name a file.")
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        try:
            with self._path.open("rb") as file:
                first = self._first_bytes(file)
                pieces = self._unpack(file) if first.startswith(GZIP) else self._plain(file)
                for number, piece in enumerate(pieces):
                    if number == 0:
                        piece = piece.removeprefix(BYTE_ORDER_MARK)
                        self._require_json(piece)
                    yield decoder.decode(piece)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SpecError(str(self._path), f"cannot be read: {reason}.") from None

    def _first_bytes(self, file: BinaryIO) -> bytes:
        first = file.read(len(OTHER_FORMATS[0][0]))
        if not first:
            raise SpecError(str(self._path), "is empty.", EXPORT)
        file.seek(0)
        self._size = max(self._path.stat().st_size, 1)
        return first

    def _require_json(self, piece: bytes) -> None:
        """Raise if the text does not begin like JSON."""
        if piece.lstrip()[:1] in (b"{", b"[", b""):
            return
        what, hint = next(
            ((what, hint) for begin, what, hint in OTHER_FORMATS if piece.startswith(begin)), ("", EXPORT)
        )
        raise SpecError(str(self._path), f"{what or 'is no JSON'}.", hint)

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while piece := file.read(PIECE_BYTES):
            yield piece
            self._show(file)

    def _unpack(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the contents of each gzip member; stop where the data are broken."""
        packed, unpacker = b"", zlib.decompressobj(GZIP_WINDOW)
        while True:
            if not packed and not (packed := file.read(PIECE_BYTES)):
                if not unpacker.eof:
                    self.broken = "the gzip data end too early"
                return
            before = unpacker.copy()
            try:
                piece = unpacker.decompress(packed, PIECE_BYTES)
            except zlib.error as error:
                self.broken = f"the gzip data are broken ({error})"
                yield _unpack_until_error(before, packed)
                return
            if piece:
                yield piece
            packed = unpacker.unconsumed_tail
            if unpacker.eof:
                packed = unpacker.unused_data.lstrip(b"\x00") or file.read(PIECE_BYTES).lstrip(b"\x00")
                if not packed.startswith(GZIP):
                    return
                unpacker = zlib.decompressobj(GZIP_WINDOW)
            self._show(file)

    def _show(self, file: BinaryIO) -> None:
        if self._progress:
            self._progress(min(file.seek(0, SEEK_CUR) / self._size, 1.0))


def _unpack_until_error(unpacker: zlib._Decompress, packed: bytes) -> bytes:
    """Return the contents of a piece of gzip data up to the fault, which may be a checksum behind all of the text."""
    found = bytearray()
    with suppress(zlib.error):
        for place in range(len(packed)):
            found += unpacker.decompress(packed[place : place + 1])
    return bytes(found)
