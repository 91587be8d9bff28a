"""The checkpoint of a fit: a journal of what the clients have answered, on the server's disk.

A fit is a function of the answers that the server gets.  A server that has the first hundred again
does in a moment what it did before, and asks for the next one: no method has to save its state.

The file is a header and a record for each answer, in bytes of
:mod:`skcfl.federation.serialization`, which are data and never pickled.  Records are found by a
digest of the question, so that their order is free.
"""

from __future__ import annotations

import contextlib
import copyreg
import hashlib
import logging
import os
import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ..exceptions import CheckpointError, MessageError
from .file_lock import FileLock, write_whole
from .serialization import dumps, loads, versions

#: First bytes of a checkpoint: the format and its version.
MAGIC = b"skcfl journal\x01\n"
#: Bytes of a digest.
DIGEST = 32
#: Protocol of pickle by which objects are taken into their parts.
PICKLE = 4
#: Bytes before a record: its length, its digest, the digest of the question.
BEFORE = 8 + 2 * DIGEST
#: Bytes of answers that are kept in memory until the next write, whenever it is due.
MOST_WAITING = 2**24

logger = logging.getLogger(__name__)


def digest(*values: Any) -> bytes:
    """Digest of numbers, text, arrays, sets, and other objects by what a pickle has of them."""
    found = hashlib.sha256()
    _feed(found, values)
    return found.digest()


def _feed(found, value, around=()):
    """Add a value to a digest; `around` has the ids of the objects that hold it."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        found.update(f"array {value.dtype.str} {value.shape} ".encode())
        found.update(np.ascontiguousarray(value))
    elif isinstance(value, np.generic | int | float | complex | str | bytes | None):
        found.update(f"{value!r} ".encode())
    elif isinstance(value, type):
        found.update(f"{value.__module__}.{value.__qualname__} ".encode())
    elif id(value) in around:  # such as a function that calls itself
        found.update(f"around {around.index(id(value))} ".encode())
    else:
        parts = _parts(value)
        found.update(f"{len(parts)} [".encode())
        for part in parts:
            _feed(found, part, (*around, id(value)))


def _parts(value):
    """Values that an object consists of, the same in every process."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, set | frozenset):
        return ["set", *sorted(digest(item) for item in value)]
    if isinstance(value, np.ndarray):
        return [value.shape, *value.ravel().tolist()]
    if hasattr(value, "to_numpy"):  # frames and their columns
        named = [getattr(value, name, None) for name in ("index", "columns")]
        return [type(value).__name__, value.to_numpy(), *named]
    if hasattr(value, "to_message"):
        return [type(value), value.to_message()]
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, FunctionType):
        name = value.__module__, value.__qualname__
        defaults = value.__defaults__, value.__kwdefaults__
        return [*name, *defaults, value.__code__, value.__closure__, vars(value)]
    try:
        if isinstance(value, CellType):
            return [value.cell_contents]
        # Tensors of torch; lazy ones have no values yet.
        if hasattr(value, "requires_grad") and not hasattr(value, "materialize"):
            return [type(value), value.requires_grad, value.detach().cpu().numpy()]
        reduced = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(PICKLE) if reduced is None else reduced(value)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"checkpoint= compares the parameters of fits, and cannot compare objects of {kind}: "
            f"{error}. Parameters must be values that can be pickled."
        ) from error
    if isinstance(made, str):  # a global name
        return [getattr(value, "__module__", None), made]
    return [list(part) if isinstance(part, Iterator) else part for part in made]


class Journal:
    """Answers on disk.

    Parameters
    ----------
    path : path-like
        The file.
    estimator : str
        Name of the estimator's class and a digest of its parameters.
    every : float
        Seconds between two writes.
    resume : bool
        If True, a file that is there is gone on from.
    models : dict, default=None
        Local model of the question by which rows are compared, by the kind of the targets.

    Attributes
    ----------
    state : dict
        What the header has besides: kept for whoever resumes.
    wire_bytes : tuple of int
        Bytes ``(up, down)`` that had travelled when the last answer was found that is here.
    n_found, n_added : int
        Answers that were found here, and that were added.
    """

    def __init__(self, path, estimator, every, resume, models=None):
        self.path, self.estimator, self.every = Path(path), estimator, float(every)
        self.models = models
        self.state, self.wire_bytes = {}, (0, 0)
        self.n_found = self.n_added = 0
        self._lock, self._places, self._waiting = threading.Lock(), defaultdict(deque), []
        self._file, self._clients, self._failed, self._begun = None, None, False, False
        self._new = False  # whether the file is this fit's
        self._end, self._size, self._due = 0, 0, time.monotonic() + self.every
        if not self.path.name:
            raise CheckpointError(f"checkpoint must be the path of a file, got {str(path)!r}.")
        if not self.path.parent.is_dir():
            raise CheckpointError(f"checkpoint={str(path)!r}: its folder is not there.")
        try:
            self._only_writer = FileLock(self.path)
        except BlockingIOError as error:
            raise CheckpointError(
                f"checkpoint={str(path)!r} is of a fit that is running ({error}): wait until it "
                "has ended, or give this fit another path."
            ) from error
        except OSError as error:
            raise self._not_written(error) from error
        try:
            if self.path.exists():
                self._go_on(resume)
        except BaseException:
            self.close(False)
            raise

    # ----------------------------------------------------------------------- reading

    def _go_on(self, resume):
        """Read the file that is there."""
        if not resume:
            raise CheckpointError(
                f"checkpoint={str(self.path)!r} is there, of a fit that has not ended: "
                "resume=True goes on from it. To begin anew, delete it."
            )
        try:
            self._read()
        except OSError as error:
            raise self._wrong(f"cannot be read ({error})") from error

    def _read(self):
        """Find the records; one that was not written to its end is dropped."""
        self._file = self.path.open("r+b", buffering=0)
        whole = self.path.stat().st_size
        if self._file.read(len(MAGIC)) != MAGIC:
            raise self._wrong("is no checkpoint of this version of skcfl")
        self._end = len(MAGIC)
        for key, payload in self._records(whole):
            if self._clients is None:
                self._check_header(payload)
            else:
                self._places[key].append((self._end - len(payload), len(payload)))
        if self._clients is None:
            raise self._wrong("has no header: it is damaged")
        if self._end < whole:
            logger.info("checkpoint %s: its last record is not whole, and is dropped", self.path)
            self._file.truncate(self._end)

    def _records(self, whole):
        """Yield the records that are there, and go on behind each."""
        while self._end + BEFORE <= whole:
            before = _read_all(self._file, BEFORE)
            size = int.from_bytes(before[:8], "little")
            if self._end + BEFORE + size > whole:
                return
            payload, key = _read_all(self._file, size), before[8 + DIGEST :]
            if hashlib.sha256(key + payload).digest() != before[8 : 8 + DIGEST]:
                # A disk without power may have its size already, and zeros in place of the rest.
                behind = _read_all(self._file, whole)
                if (before + payload)[-1] or behind.strip(b"\0"):
                    raise self._wrong(f"is damaged at byte {self._end}")
                return
            self._end += BEFORE + size
            yield key, payload

    def _check_header(self, payload):
        header = self._loaded(payload)
        if not (
            isinstance(header, dict) and {"versions", "estimator", "clients"} <= header.keys()
        ):
            raise self._wrong("has no header: it is damaged")
        if header["versions"] != versions():
            raise self._wrong(
                f"was written by skcfl {header['versions'][0]!r:.40} and its calls, this is "
                f"{versions()[0]!r} or has others: go on with that version"
            )
        if header["estimator"] != self.estimator:
            raise self._wrong(
                f"is of another estimator, or of other parameters ({header['estimator']:.80} "
                f"there, {self.estimator} here)"
            )
        self._clients, self.state = header["clients"], header["state"]

    def _loaded(self, payload):
        try:
            return loads(payload, packages=(), max_bytes=len(payload), same_version=False)
        except MessageError as error:
            raise self._wrong(f"cannot be read: {error}") from error

    def _wrong(self, text):
        return CheckpointError(f"checkpoint={str(self.path)!r} {text}. To begin anew, delete it.")

    def _not_written(self, error):
        return CheckpointError(f"checkpoint={str(self.path)!r} cannot be written ({error}).")

    # ----------------------------------------------------------------------- writing

    def begin(self, clients):
        """Begin a file, or go on with one of the same clients; later calls do nothing.

        Parameters
        ----------
        clients : dict
            Digests by name of what the clients have said of themselves.

        Returns
        -------
        begun : bool
            False in later calls.
        """
        if self._begun:
            return False
        self._begun = True
        if self._clients is not None:
            other = [name for name, value in clients.items() if self._clients.get(name) != value]
            if other:
                raise self._wrong(f"is of other clients: {', '.join(other)} are not the same")
            return True
        self._clients = clients
        header = {"versions": versions(), "estimator": self.estimator, "clients": clients}
        data = MAGIC + _record(bytes(DIGEST), dumps({**header, "state": self.state}, ()))
        try:
            # It holds what clients have sent to this server: no other user reads it.
            write_whole(self.path, data, 0o600)
        except OSError as error:
            raise self._not_written(error) from error
        self._file, self._end = self.path.open("r+b", buffering=0), len(data)
        self._new = True
        return True

    def take(self, key):
        """The next answer to a question, by its digest; None if there is none any more."""
        with self._lock:
            if not self._places[key]:
                return None
            place, size = self._places[key].popleft()
            self._file.seek(place)
            found = self._loaded(_read_all(self._file, size))
            self.wire_bytes = found["bytes"]
            self.n_found += 1
        return _unpacked(found["value"])

    def add(self, key, value, wire_bytes=(0, 0)):
        """Add an answer."""
        record = _record(key, dumps({"value": _packed(value), "bytes": wire_bytes}, ()))
        with self._lock:
            self.n_added += 1
            self._waiting.append(record)
            self._size += len(record)
            if self._size > MOST_WAITING or time.monotonic() >= self._due:
                self._write()

    def _write(self):
        """Write what waits; if that fails, drop it: it is asked again by whoever resumes."""
        data, self._waiting, self._size = b"".join(self._waiting), [], 0
        try:
            self._file.seek(self._end)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
            self._end += len(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            if not self._failed:
                warnings.warn(
                    f"checkpoint={str(self.path)!r} could not be written ({error}). The fit goes "
                    "on; resumed, it would ask again for what is not there.",
                    stacklevel=2,
                )
            self._failed = True
        self._due = time.monotonic() + self.every

    def close(self, ended):
        """Write the rest, or delete the file of a fit that has ended, or has no answer."""
        with self._lock:
            if self._file is not None:
                if ended or (self._new and not self.n_added):
                    self.path.unlink(missing_ok=True)
                elif self._waiting:
                    self._write()
                self._file.close()
                self._file = None
            self._only_writer.release()


def _read_all(file, size):
    """Bytes of a file without a buffer, which reads no more than it likes at once."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _record(key, payload):
    seal = hashlib.sha256(key + payload).digest()
    return len(payload).to_bytes(8, "little") + seal + key + payload


def _packed(value):
    """A value in which arrays by columns are marked: products of both kinds differ in a bit."""
    if isinstance(value, dict):
        return {name: _packed(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_packed, value))
    if isinstance(value, np.ndarray) and value.flags.f_contiguous and not value.flags.c_contiguous:
        return {"by columns": value.T}
    return value


def _unpacked(value):
    """The value of :func:`_packed`, in arrays that may be written to."""
    if isinstance(value, dict) and value.keys() == {"by columns"}:
        return value["by columns"].copy().T
    if isinstance(value, dict):
        return {name: _unpacked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_unpacked, value))
    return value.copy() if isinstance(value, np.ndarray) else value
