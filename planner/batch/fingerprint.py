"""Fingerprints of jobs: a hash of a job's entries and of the files that it names."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.version import version
from planner.jobs.cluster import device_path
from planner.jobs.document import Plain
from planner.jobs.model import config_path

KEY_BYTES = 16


class Fingerprints:
    """Computes fingerprints of jobs; hashes of unchanged files are cached."""

    def __init__(self) -> None:
        self._version = version()
        self._files: dict[tuple[str, int, int], str] = {}

    def key(self, name: str, document: Mapping[str, Plain], folder: Path, mistake: str | None = None) -> str:
        """
        Hash a job: its name, its entries, the files that it names, and the version of this package.

        Parameters
        ----------
        name
            Name of the job.
        document
            Entries of the job, overrides included.
        folder
            Folder that its paths are relative to; not part of the hash.
        mistake
            Reason that it could not be read.
        """
        files = [self._file(path) for path in _input_files(document, folder)]
        text = json.dumps([self._version, name, document, files, mistake], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[: 2 * KEY_BYTES]

    def _file(self, path: Path) -> str:
        try:
            stat = path.stat()
            seen = (str(path), stat.st_mtime_ns, stat.st_size)
            if seen not in self._files:
                self._files[seen] = hashlib.sha256(path.read_bytes()).hexdigest()
            return self._files[seen]
        except (OSError, ValueError):
            return "cannot be read"


def _input_files(document: Mapping[str, Plain], folder: Path) -> Iterator[Path]:
    """Yield the files that :func:`planner.load` would read; wrong names are skipped, as ``load`` reports them."""
    model, cluster, search = (document.get(name) for name in ("model", "cluster", "search"))
    try:
        path = config_path(model, folder) if isinstance(model, str) else None
    except SpecError:
        path = None
    if path is not None:
        yield path
    device = cluster.get("device") if isinstance(cluster, dict) else None
    if isinstance(device, str) and (path := device_path(device, folder)) is not None:
        yield path
    candidates = search.get("candidates") if isinstance(search, dict) else None
    if isinstance(candidates, str):
        yield folder / os.path.expanduser(candidates)
