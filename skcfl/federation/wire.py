"""Messages between organisations: bytes, of which the receiver makes nothing but what it knows.

Pickle can call anything.  Who reads these bytes looks up numpy's arrays and the classes of local
models, whatever is in them, and no other name: a site that takes part in a federation does not let
the server run code on its rows, nor the other way round.
"""

from __future__ import annotations

import io
import pickle
import warnings
from abc import abstractmethod
from inspect import isclass

import numpy as np

from ..exceptions import FederationError
from .federation import Hello
from .last_answers import Forgotten
from .remote import Transport
from .sites import PlaceLost, Refused

# What arrays and their types are made of; numpy 1 and 2 name the modules differently.
CORES = ("numpy.core", "numpy._core")
PLAIN = {
    ("_codecs", "encode"),
    *(("builtins", name) for name in ("bool", "complex", "float", "frozenset", "int", "set")),
    *(("numpy", name) for name in ("dtype", "ndarray", "float32", "float64")),
    *((f"{core}.multiarray", name) for core in CORES for name in ("_reconstruct", "scalar")),
    *((f"{core}.numeric", "_frombuffer") for core in CORES),
    ("skcfl.federation.federation", "Hello"),
    ("skcfl.federation.scaling", "Scaling"),
}
# Where the classes of local models are.
MODELS = ("skcfl.models",)


def dumps(message):
    """A message as bytes."""
    return pickle.dumps(message, protocol=5)


def loads(data, trusted=()):
    """The message that bytes hold.

    Parameters
    ----------
    data : bytes
        What was received.
    trusted : collection of str, default=()
        Packages or modules whose classes may be made, besides those of local models.

    Returns
    -------
    message : object

    Raises
    ------
    pickle.UnpicklingError
        If it names anything else.
    """
    return _Reader(io.BytesIO(data), (*MODELS, *trusted)).load()


class _Reader(pickle.Unpickler):
    def __init__(self, file, trusted):
        super().__init__(file)
        self.trusted = trusted

    def find_class(self, module, name):
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        if "." not in name and self._is_trusted(module):
            found = super().find_class(module, name)
            # What a module has imported is not its own.
            if isclass(found) and self._is_trusted(found.__module__):
                return found
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which is not trusted here: the user's own classes need "
            "their module in trusted="
        )

    def _is_trusted(self, module):
        return any(module == own or module.startswith(f"{own}.") for own in self.trusted)


def is_plain(value):
    """Whether a value is made of numbers, text and arrays of them: what a site may send."""
    if isinstance(value, dict):
        return all(isinstance(key, str | int) for key in value) and all(
            map(is_plain, value.values())
        )
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    if isinstance(value, Hello):
        return all(map(is_plain, vars(value).values()))
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "O" or all(isinstance(v, str | int | float) for v in value.flat)
    plain = str | bytes | bool | int | float | np.generic | np.dtype | None
    return isinstance(value, plain)


class WireTransport(Transport):
    """The way to a :class:`~skcfl.federation.host.SiteHost`, whatever carries the bytes.

    A site that does not answer, for whatever reason, is lost: its clients are silent.  Rows that
    cannot be taken are an error.

    Parameters
    ----------
    name : str
        Name of the site.
    patience : int, default=3
        How many calls in a row a site may leave without an answer; it is not waited for again.
        Calls that were on their way at the same time count as one.

    Attributes
    ----------
    failures : list of str
        Why the site did not answer, each reason once; there is a warning with each.
    messages : int
        How many were sent.
    """

    def __init__(self, name, patience=3):
        self.name, self.patience = name, patience
        self.failures, self.messages, self._missed = [], 0, 0

    @abstractmethod
    def send(self, message):
        """Send a message.

        Parameters
        ----------
        message : bytes
            What :meth:`~skcfl.federation.host.SiteHost.handle` takes.

        Returns
        -------
        wait : callable
            Gives the reply, bytes, or raises an error that says why there is none; a
            FederationError ends the fit.
        """

    def start(self, request):
        """Send a request; see ``Transport.start``."""
        if self._missed >= self.patience:
            return _raising(self._lost(f"not asked again after {self.patience} calls"))
        self.messages += 1
        missed = self._missed
        try:
            receive = self.send(dumps(request))
        except FederationError:
            raise
        except Exception as error:
            receive = _raising(error)

        def wait():
            try:
                status, value, note = loads(receive())
            except FederationError:
                raise
            except Exception as error:
                self._missed = max(self._missed, missed + 1)
                kind = "" if isinstance(error, PlaceLost) else f"{type(error).__name__}: "
                raise self._lost(f"{kind}{error}") from error
            self._missed = 0
            if note is not None:
                self._lost(note)
            if status == "invalid":
                raise ValueError(value)
            if status == "forgotten":
                raise Forgotten(value)
            if status in ("lost", "refused"):
                raise self._lost(value, Refused if status == "refused" else PlaceLost)
            return status, value

        return wait

    def _lost(self, reason, kind=PlaceLost):
        text = f"site {self.name!r}: {reason}"
        if text not in self.failures:
            self.failures.append(text)
            warnings.warn(f"No answer of {text}", stacklevel=2)
        return kind(text)


def _raising(error):
    def wait():
        raise error

    return wait
