"""Rows of a host, and what it makes of them for a server in another process."""

import math
import pickle
import threading
import time
import traceback
from contextlib import contextmanager

import numpy as np

from ..calls.answers import check_arguments
from ..calls.call import CALLS
from ..calls.letters import sizes_of
from ..exceptions import MessageError
from ..numerics.threads import BLAS
from .checking import check_positions
from .federation import InProcessFederation
from .journal import digest
from .privacy import PrivateRows
from .released import kept_release
from .rows import merged
from .serialization import MAX_BYTES
from .sites import PlaceLost, Refused

# What the clients of a host are before a model is chosen.
ROOT = 0
#: Fits for which a site keeps what nothing was asked of: its server may have ended. What cannot be
#: made anew, such as models that clients remember, is kept for some seconds, too.
KEPT_FITS, KEPT_SECONDS = 3, 3600.0


class Host:
    """Parts of a federation in this process, for a server in another one.

    Parameters
    ----------
    parts : list of (int, str, object)
        Number and name of each part, and its rows: ``(X, y, groups)`` or ``(X, y, groups,
        sample_weight)``, or a function that loads them.
    n_jobs : int or None, default=None
        Threads of a computation.
    skip_empty : bool, default=False
        Whether parts may be without rows; otherwise they are errors.
    policy : SitePolicy, default=None
        What the clients agree to answer; None is everything.
    site : str, default=None
        Name of the site if the host is one.
    """

    def __init__(self, parts, n_jobs=None, skip_empty=False, policy=None, site=None):
        self._is_site = site is not None
        self._kept = {ROOT: HostedParts(parts, n_jobs, skip_empty, policy, site)}
        # Number of the fit, the first thing on the way from the root to each, and the last fit in
        # which something on the way was asked.
        self._fit, self._first, self._asked = 0, {}, {}
        # Of a thing that several threads ask for there is one.
        self._making = threading.Lock()

    def ask(self, key, recipe, dropped, name, arguments):
        """Call a method of something that is kept here.

        Parameters
        ----------
        key : int
            Number of the thing.
        recipe : list of (int, int, str, tuple)
            How to make it if it is not here, from what is: number, number of what it is made
            from, method, arguments.
        dropped : list of int
            What the server has no more use for.
        name : str
            The method.
        arguments : tuple
            What it takes.

        Returns
        -------
        status : {"done", "unknown", "error"}
            Unknown is what is not here and has no recipe.
        value : object
            What came out, an exception of an error.
        """
        for old in dropped:
            if old != ROOT:
                self._drop(old)
        try:
            with self._making:
                if name == "hello" and self._is_site:
                    self._begin_fit()
                for made, source, method, settings in recipe:
                    if made not in self._kept:
                        if source not in self._kept:
                            return "unknown", None
                        self._kept[made] = getattr(self._kept[source], method)(*settings)
                        self._first[made] = self._first.get(source, made)
            if key not in self._kept:
                return "unknown", None
            remembers = name.startswith("mask_") or (
                name == "answer" and arguments[0] in CALLS and CALLS[arguments[0]].remembers
            )
            first = self._first.get(key, ROOT)
            until = time.monotonic() + KEPT_SECONDS if remembers else 0.0
            self._asked[first] = self._fit, max(until, self._asked.get(first, (0, 0.0))[1])
            if name == "answer":
                call, sent = arguments
                thing = self._kept[key]
                arguments = call, CALLS[call].unpacked(sent, thing.n_clients)
                if self._is_site:
                    _check_size(*arguments, sizes_of(thing, arguments[1]))
            with BLAS:
                return "done", getattr(self._kept[key], name)(*arguments)
        except Exception as error:
            return "error", _portable(error)

    def _begin_fit(self):
        """Drop what other fits have made if nothing was asked of it since the last few began."""
        self._fit += 1
        now = time.monotonic()
        self._asked = {
            first: (fit, until)
            for first, (fit, until) in self._asked.items()
            if self._fit - fit < KEPT_FITS or now < until
        }
        for key, first in list(self._first.items()):
            if first not in self._asked:
                self._drop(key)

    def _drop(self, key):
        self._kept.pop(key, None)
        self._first.pop(key, None)

    def kept(self, key):
        """The thing with a number, None if it is not here."""
        return self._kept.get(key)


def _check_size(call, arguments, sizes):
    """Raise an error if a call is not what the table says, or its answer is no message."""
    check_arguments(call, arguments, sizes)
    size = 8 * sum(map(math.prod, CALLS[call].shapes(arguments, sizes).values()))
    if size > MAX_BYTES:
        raise MessageError(f"the answer has {size} bytes, more than {MAX_BYTES}.")


def _portable(error):
    """The exception with its traceback as a note, or what is known of it if it cannot travel."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"Raised where the rows are:\n{text}")
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}\n{text}")


class HostedParts:
    """What a host holds before a model is chosen; parameters as of :class:`Host`."""

    def __init__(self, parts, n_jobs, skip_empty, policy=None, site=None):
        self._sources, self._n_jobs, self._skip_empty = parts, n_jobs, skip_empty
        self._policy, self._site = policy, site
        self._parts, self._whole = None, None

    def load(self):
        """Load what is not loaded yet, and check it.

        Returns
        -------
        n_parts : int
        """
        if self._parts is None:
            parts = []
            for number, name, source in self._sources:
                federation = self._loaded(name, source)
                if federation is not None:
                    parts.append((number, name, federation))
            self._parts = parts
            # Arrays that were sent are held by their federations.
            self._sources = [one for one in self._sources if callable(one[2])]
        return len(self._parts)

    def _loaded(self, name, source):
        try:
            rows = source() if callable(source) else source
        except Exception as error:
            error.add_note(f"This is {name}, while it was loaded.")
            raise
        if not isinstance(rows, (tuple, list)) or len(rows) not in (3, 4):
            raise TypeError(
                f"{name} must be (X, y, groups) or (X, y, groups, sample_weight), got "
                f"{type(rows).__name__}"
                + (f" of {len(rows)}." if isinstance(rows, (tuple, list)) else ".")
            )
        if self._skip_empty and len(rows[2]) == 0:
            return None
        with _about_part(name):
            federation = InProcessFederation(*rows, n_jobs=self._n_jobs, policy=self._policy)
        federation.site = self._site
        return federation

    def hello(self, kind):
        """Number, name and Hello of each part."""
        self.load()
        said = []
        for number, name, part in self._parts:
            with _about_part(name):
                said.append((number, name, part.hello(kind)))
        return said

    def released(self, n_folds):
        """What its part releases, see :func:`~skcfl.federation.released.kept_release`."""
        if self.load() > 1:
            raise Refused(
                f"it has {len(self._parts)} parts and one account, which is of one release: give "
                "each worker one part"
            )
        return [kept_release(part, n_folds) for *_, part in self._parts]

    def rows(self, places, model, dtype, classes, clients=None):
        """The rows of all parts, whose clients are at `places` of the whole federation.

        Their server gives the digest of `clients` that said hello to it: the host may have been
        started again since.
        """
        self.load()
        if clients is not None and clients != clients_of(self.hello(None)):
            raise PlaceLost("its clients are other ones than at the start of the fit")
        ends = np.cumsum([len(part.ids) for *_, part in self._parts])
        check_positions("places", places, np.inf)
        if len(places) != ends[-1]:
            raise ValueError(f"places must be those of {ends[-1]} clients, got {len(places)}.")
        own = []
        for (_, name, part), some in zip(self._parts, np.split(places, ends[:-1]), strict=True):
            with _about_part(name):
                own.append(part.rows_at(some, model, dtype, classes))
        rows = merged(own)
        private = isinstance(rows, PrivateRows)
        if len(own) > 1 and not private and isinstance(rows.X, np.ndarray):
            # One copy of the features is enough, unless this fit has them in another type.
            starts = np.cumsum([len(part.codes) for part in own])[:-1]
            for (*_, part), X in zip(self._parts, np.split(rows.X, starts), strict=True):
                part.X = X if X.dtype == part.X.dtype else part.X
        return rows


def clients_of(said):
    """Digest of the clients that have said hello, with the sizes and weights of their rows.

    Private ones have other names whenever their host is started.
    """
    hellos = [hello for *_, hello in said]
    names = [None if hello.privacy else hello.ids for hello in hellos]
    return digest(names, [(hello.sizes, hello.weights) for hello in hellos])[:8].hex()


@contextmanager
def _about_part(name):
    """Name the part in errors of what is wrong with its rows."""
    try:
        yield
    except (ValueError, TypeError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name}: {error}") from error
