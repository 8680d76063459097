"""JSON of a trace, read in one pass: its events in batches, and the other entries at its top."""

from __future__ import annotations

import gzip
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from json import JSONDecodeError, JSONDecoder
from os import SEEK_CUR
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from costmodel.errors import SpecError

BATCH_CHARACTERS = 1 << 16

"""Characters decoded at once: the result fits into a processor's cache, which saves a third of the time."""

MOST_CHARACTERS = 1 << 27

"""Characters within which an event must end."""

DECODER = JSONDecoder(parse_float=str, strict=False)

"""
Fractions stay text: 1740461679479712.345 microseconds have more digits than a float.

Kineto does not escape all characters that it should.
"""

OF_NO_USE = re.compile(r'\s*"ph":\s*"(?:[^X]"|X",\s*"cat":\s*"python_function",\s*"name":\s*"(?!nn\.Module: ))')

"""
Beginnings of events that are skipped undecoded, in the order in which Kineto writes its keys. Flows are a third of all
events and repeat correlation numbers of others; functions are most of a trace with stacks.
"""

KEPT = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds")

"""Entries other than events that are read."""

SPACE, COMMA, BETWEEN = re.compile(r"\s*"), re.compile(r"\s*,\s*"), re.compile(r"\}\s*,\s*\{")

NO_NUMBER = re.compile(r"(:\s*)-?(?:inf|nan)(?=\s*[,}\]])", re.IGNORECASE)

"""Kineto writes the rate of a copy that took no time as ``inf``, which is not JSON."""

LONGEST_WORD = 16

"""Characters of a number or word that the end of the text may cut."""


class Document:
    """
    Text of a trace.

    Parameters
    ----------
    pieces
        Pieces of the text.
    where
        Name of the file, for messages.

    Attributes
    ----------
    top
        Entries besides the events, complete when the events are; None for those that are not read.
    num_broken
        Events left out because they are not JSON.
    truncated
        True where the text ended before the document did.
    """

    def __init__(self, pieces: Iterable[str], where: str) -> None:
        self.top: dict[str, Any] = {}
        self.num_broken = 0
        self.truncated = False
        self._pieces, self._where = iter(pieces), where
        self._text, self._at = "", 0
        self._ended, self._num_idle = False, 0
        self._between = ""

    def batches(self) -> Iterator[list[Any]]:
        """
        Yield events in the order of the file, many at once.

        Raises
        ------
        SpecError
            If the text is not JSON, is nested too deeply, or an event does not end.
        """
        try:
            yield from self._list() if self._peek() == "[" else self._object()
        except JSONDecodeError:
            self.truncated = True
        except RecursionError:
            raise SpecError(self._where, "is nested too deeply to be a trace.") from None

    # --- what stands at the top ------------------------------------------------------------------------------

    def _object(self) -> Iterator[list[Any]]:
        self._expect("{")
        while (mark := self._peek()) != "}":
            if mark == ",":
                self._expect(",")
                continue
            name = self._value()
            self._expect(":")
            if name == "traceEvents" and self._peek() == "[":
                yield from self._list()
            else:
                value = self._value()
                self.top[str(name)] = value if name in KEPT else None

    def _list(self) -> Iterator[list[Any]]:
        self._expect("[")
        while (mark := self._peek()) != "]":
            if mark == ",":
                self._expect(",")
            else:
                batch = self._batch()
                yield self._element() if batch is None else batch
        self._expect("]")

    # --- events ----------------------------------------------------------------------------------------------

    def _batch(self) -> list[Any] | None:
        """Decode all events that lie whole in the text at hand; None until the separator of events is known."""
        if not self._between:
            return None
        while len(self._text) - self._at < BATCH_CHARACTERS and self._read_more():
            pass
        end = self._text.rfind(self._between, self._at, self._at + BATCH_CHARACTERS)
        if end < 0:
            return None
        events = self._decode(self._text[self._at : end + 1])
        if events is None:
            return self._decode_one_by_one()
        self._at, self._num_idle = end + 1, 0
        return events

    def _decode(self, text: str) -> list[Any] | None:
        """
        Decode events that follow on each other, without the unused ones; None if the text is something else.

        A piece with a bracket is always decoded: it may be the last event, with the text after the list.
        """
        pieces = [piece for piece in text[1:-1].split(self._between) if not OF_NO_USE.match(piece) or "]" in piece]
        try:
            events: list[Any] = DECODER.decode(f"[{{{'},{'.join(pieces)}}}]") if pieces else []
        except JSONDecodeError:
            return None
        return events

    def _decode_one_by_one(self) -> list[Any]:
        """Decode events one by one: one is broken, the list ends between them, or the separator lies within one."""
        self._mend()
        events: list[Any] = []
        end = self._text.rfind(self._between)
        while self._at < end:
            try:
                event, self._at = DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                if self._is_cut(error) and (events or self._read_more()):
                    break
                self._skip(end + 1)
                continue
            events.append(event)
            self._num_idle = 0
            comma = COMMA.match(self._text, self._at)
            if not comma:
                break
            self._at = comma.end()
        return events

    def _skip(self, otherwise: int) -> None:
        """Go to the next event and count a broken one as left out; go to ``otherwise`` if there is no next one."""
        self.num_broken += 1
        found = BETWEEN.search(self._text, self._at)
        self._at = found.end() - 1 if found else otherwise

    def _element(self) -> list[Any]:
        """Decode one event, [] if it is broken, and find the separator between it and the next."""
        try:
            event = self._value()
        except JSONDecodeError:
            if not BETWEEN.search(self._text, self._at):
                raise
            self._skip(self._at)
            return []
        if isinstance(event, dict) and self._peek() == ",":
            while (comma := COMMA.match(self._text, self._at)) and comma.end() == len(self._text) and self._read_more():
                pass
            if comma and self._text[comma.end() :].startswith("{"):
                self._between = "}" + self._space + comma.group() + "{"
        return [event]

    # --- text ------------------------------------------------------------------------------------------------

    def _value(self) -> Any:
        """Decode the JSON value at this place."""
        self._peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                if (self._is_cut(error) and self._read_more()) or self._mend():
                    continue
                raise
            if end < len(self._text) or not self._read_more():
                self._at, self._num_idle = end, 0
                return value

    def _is_cut(self, error: JSONDecodeError) -> bool:
        """Return True if a value may go on behind the text at hand."""
        return error.msg.startswith("Unterminated") or error.pos > len(self._text) - LONGEST_WORD

    def _mend(self) -> bool:
        """Replace numbers that are not JSON with null; return True if there was one."""
        rest = self._text[self._at :]
        self._text, self._at = NO_NUMBER.sub(r"\1null", rest), 0
        return self._text != rest

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            seen = self._text[self._at : self._at + 40]
            raise SpecError(self._where, f"is no JSON: expected '{mark}' before '{seen}'.")
        self._at += 1

    def _peek(self) -> str:
        """Return the next character that is not white space."""
        while True:
            space = SPACE.match(self._text, self._at)
            end = space.end() if space else self._at
            if end < len(self._text):
                self._space = self._text[self._at : end]
                self._at = end
                return self._text[end]
            if not self._read_more():
                raise JSONDecodeError("The text is cut off", self._text, self._at)

    def _read_more(self) -> bool:
        """Read about twice as much text as is at hand; return False at the end."""
        rest = self._text[self._at :]
        pieces, wanted = [rest], max(len(rest), 1)
        while wanted > 0 and not self._ended:
            piece = next(self._pieces, None)
            self._ended = piece is None
            pieces.append(piece or "")
            wanted -= len(pieces[-1])
            self._num_idle += len(pieces[-1])
            if self._num_idle > MOST_CHARACTERS:
                raise SpecError(self._where, f"goes on for more than {MOST_CHARACTERS:,} characters without an event.")
        self._text, self._at = "".join(pieces), 0
        return len(self._text) > len(rest)


Progress: TypeAlias = Callable[[float], None]

"""Called with the fraction of the bytes that have been read."""

PIECE_BYTES = 1 << 20

"""Bytes read at once."""

UNPACKED_BYTES = 1 << 16

"""Bytes unpacked at once: where the data are broken, so much of the text before may be lost."""

GZIP = b"\x1f\x8b"

EXPORT = "Record with torch.profiler and write with export_chrome_trace, to .json or .json.gz."

UNPACK = "Unpack it first; .json and .json.gz are read as they are."

PICKLES = (b"\x02", b"\x03", b"\x04", b"\x05")

OTHER_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"SQLite format 3\x00", "is a database, as NVIDIA Nsight Systems exports it", EXPORT),
    (b"PK\x03\x04", "is a ZIP archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "is packed with zstd", UNPACK),
    (b"\xfd7zXZ\x00", "is packed with xz", UNPACK),
    (b"BZh", "is packed with bzip2", UNPACK),
    (b"PAR1", "is a Parquet file", EXPORT),
    *((b"\x80" + end, "is a pickle, which could run code and is never loaded", EXPORT) for end in PICKLES),
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
                size, is_packed = max(self._path.stat().st_size, 1), file.read(len(GZIP)) == GZIP
                file.seek(0)
                pieces = self._unpack(file) if is_packed else iter(partial(file.read, PIECE_BYTES), b"")
                for number, piece in enumerate(pieces):
                    if number == 0:
                        piece = piece.removeprefix(BYTE_ORDER_MARK)
                        self._require_json(piece)
                    yield decoder.decode(piece)
                    if self._progress:
                        self._progress(min(file.seek(0, SEEK_CUR) / size, 1.0))
                if not is_packed and not file.seek(0, SEEK_CUR):
                    raise SpecError(str(self._path), "is empty.", EXPORT)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SpecError(str(self._path), f"cannot be read: {reason}.") from None

    def _require_json(self, piece: bytes) -> None:
        """Raise if the text does not begin like JSON."""
        if piece.lstrip()[:1] in (b"{", b"[", b""):
            return
        what, hint = next(
            ((what, hint) for begin, what, hint in OTHER_FORMATS if piece.startswith(begin)), ("", EXPORT)
        )
        raise SpecError(str(self._path), f"{what or 'is no JSON'}.", hint)

    def _unpack(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the contents; stop where the data are broken."""
        packed = gzip.GzipFile(fileobj=file)
        try:
            yield from iter(partial(packed.read1, UNPACKED_BYTES), b"")
        except EOFError:
            self.broken = "the gzip data end too early"
        except (gzip.BadGzipFile, zlib.error) as error:
            self.broken = f"the gzip data are broken ({error})"
