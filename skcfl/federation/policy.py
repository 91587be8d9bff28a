"""What a site agrees to, whoever asks: its own decision, which no server can change."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection
from contextlib import contextmanager, nullcontext
from os import PathLike

import numpy as np

from .._checks import about, whole_number
from ..calls.answers import check_arguments
from ..calls.call import CALLS
from ..calls.letters import sizes_of
from ..clients.last_answers import Forgotten
from ..exceptions import PrivacyError, RowsShownError
from ..numerics.by_cluster import effective_numbers, weight_by_cluster
from ..numerics.matrices import quotient
from ..numerics.once import once
from .checking import check_positions
from .privacy import ClientPrivacy
from .query_log import QueryLog
from .row_calls import ROW_CALLS, TOLD_BY, check_calls
from .sites import PlaceLost, Refused, WrappedSite, answer_without

#: Calls with an entry for each bin, leaf, level or local cluster: it, or the difference of two,
#: may be that of one row.
BY_PART = {"below", "distinct"}
BY_PART |= {name for name, call in CALLS.items() if call.about in ("parts", "counts")}


class SitePolicy:
    """Which calls the clients of a site answer.

    A policy stands at every exit of a site: the calls to its clients, and what is asked of its
    rows to scale features, to count classes and to score. A site that has refused a call takes no
    further part in that fit, so that sums over the clients are always over the same clients.
    Where the site is elsewhere its clients are missing from then on; in this process the refusal
    is an error.

    Parameters
    ----------
    min_rows : int, default=1
        Every answer is about at least so many rows of each client. Clients of fewer rows do not
        answer and are in no sum. Clients hold out so many rows or more in a search, and keep as
        many. Those of fewer rows, or that have answered about other parts, hold out none and do
        not judge. Clients do not answer about classes of fewer rows; or after steps on batches,
        which the server draws, unless `calls` name these steps: then of so many rows. Rows of
        unequal weights count as ``(sum of weights)^2 / sum of squared weights``.
    min_clients : int, default=1
        Sums over clients are over at least so many clients of the site, also where these choose
        what they are summed by. Clients of unequal weights count as rows do, unless these are the
        weights of their rows. Answers with an entry for each client are no sums: leave them out of
        `calls`.
    calls : collection of str or None, default=None
        The calls that are answered, by their names in ``skcfl.calls.CALLS`` and
        ``skcfl.federation.row_calls.ROW_CALLS``; None is all of them, with a `min_rows`
        or `min_clients` above 1 without those of curves, trees, crossed groupings and local
        centres, as single rows or clients may make an entry of their sums, or the difference of
        two; and nothing of the kind is made of the rows then. Clients are silent to
        "fingerprints" under such a `min_rows`. Calls that send nothing up are always answered.
    max_calls : int or None, default=None
        How many calls are answered, in all fits of one host together; None is any number.
    query_log : str or path, default=None
        File in which the site keeps what was answered, so that `min_rows` and `max_calls` hold for
        all hosts that have it, such as those of all jobs of NVFlare. Rows are known again by their
        client, values and weights: while a client has a few new rows, or lacks a few, it answers
        nothing more. None keeps nothing after the end of a host.
    privacy : ClientPrivacy, default=None
        Declared privacy: clients answer its releases and nothing else, whatever the other
        parameters. None declares none.

    Raises
    ------
    ValueError
        If there is no such call, a number is no positive integer, or a file cannot be written.

    Examples
    --------
    A site that sends no second derivatives:

    >>> from skcfl import FedAvgRegressor, LocalModelsRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation, SitePolicy
    >>> from skcfl.calls import CALLS
    >>> from skcfl.federation.row_calls import ROW_CALLS
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> policy = SitePolicy(calls={*CALLS, *ROW_CALLS} - {"hessians"})
    >>> federation = InProcessFederation(data.X, data.y, data.groups, policy=policy)
    >>> LocalModelsRegressor(alpha=0.01).fit_federation(federation).params_.shape
    (6, 11)
    >>> FedAvgRegressor(alpha=0.01).fit_federation(federation)
    Traceback (most recent call last):
        ...
    skcfl.federation.sites.Refused: it does not answer hessians
    """

    def __init__(
        self,
        min_rows: int = 1,
        min_clients: int = 1,
        calls: Collection[str] | None = None,
        max_calls: int | None = None,
        privacy: ClientPrivacy | None = None,
        query_log: str | PathLike[str] | None = None,
    ) -> None:
        self.min_rows = whole_number(min_rows, "min_rows")
        self.min_clients = whole_number(min_clients, "min_clients")
        self.max_calls = whole_number(max_calls, "max_calls", optional=True)
        if calls is not None:
            calls = check_calls(calls, {*CALLS, *ROW_CALLS})
        if privacy is not None and not isinstance(privacy, ClientPrivacy):
            raise TypeError(f"privacy must be ClientPrivacy or None, got {privacy!r:.80}.")
        if privacy is not None:
            privacy.check_unit()
        self.calls, self.privacy, self.query_log = calls, privacy, query_log
        if query_log is not None:
            QueryLog(query_log)

    def allows(self, call: str) -> bool:
        """Whether clients answer a call.

        Parameters
        ----------
        call : str
            Its name.

        Returns
        -------
        allowed : bool
        """
        if self.calls is None:
            return not self.limits or call not in BY_PART
        return call in self.calls

    @property
    def limits(self) -> str:
        """What answers are about at least, in words; nothing where both numbers are 1."""
        given = {"min_rows": self.min_rows, "min_clients": self.min_clients}
        return " and ".join(f"{name} is {n}" for name, n in given.items() if n > 1)

    def __repr__(self):
        calls = None if self.calls is None else sorted(self.calls)
        return (
            f"SitePolicy(min_rows={self.min_rows}, min_clients={self.min_clients}, "
            f"calls={calls}, max_calls={self.max_calls}, privacy={self.privacy!r}, "
            f"query_log={self.query_log!r})"
        )


def check_policy(policy: SitePolicy | None) -> None:
    """Raise a TypeError for what is neither a policy nor None."""
    if policy is not None and not isinstance(policy, SitePolicy):
        raise TypeError(f"policy must be a SitePolicy or None, got {type(policy).__name__}.")


def is_silent(policy, call):
    """Whether clients are silent to a call: to digests of their rows, under `min_rows`.

    Sums leave few possible tables of small integers, and the digest tells which it is. The fit
    goes on: without digests the server does not know that clients have the same rows.
    """
    return call == "fingerprints" and policy.calls is None and policy.min_rows > 1


def known_classes(y, codes, guard, account):
    """The classes that a server may know: under privacy those that are declared.

    Parameters
    ----------
    y : array-like of shape (n_rows,) or None
        Targets; None if there are no classes.
    codes : ndarray of shape (n_rows,)
        Client of each row.
    guard : Guard or None
        The policy of the place.
    account : Account or None
        The privacy of the place.

    Returns
    -------
    classes : ndarray or None

    Raises
    ------
    Refused
        If no client has enough rows, or classes would reveal single rows.
    """
    classes = None
    if y is not None:
        with about("y"), np.errstate(invalid="ignore"):
            classes = np.unique(y)
    if account is None:
        if guard is not None:
            guard.check_hello(codes, classes)
        return classes
    declared = account.privacy.bounds.get("classes")
    if classes is not None and declared is not None and not np.isin(classes, declared).all():
        raise ValueError("y has classes that bounds['classes'] does not declare.")
    return None if classes is None else declared


#: Fits that a place ends because of its rows until it answers no more.
MOST_ENDED = 10


class Guard:
    """A policy that is kept for the rows of one place, in all fits.

    Parameters
    ----------
    policy : SitePolicy
        What is agreed to.
    """

    def __init__(self, policy):
        self.policy, self._numbers = policy, {}
        self._cells, self._owners, self._lock = None, None, threading.Lock()
        self._log = None if policy.query_log is None else QueryLog(policy.query_log)
        self._version, self._gone = None, np.zeros(0)

    @contextmanager
    def _entries(self):
        """The file of what was answered, None without one; no other thread has it meanwhile."""
        with self._lock, nullcontext() if self._log is None else self._log.open() as entries:
            yield entries

    def counted(self, most):
        """Whether another call may be answered, which is counted then."""
        return self._changed("calls", lambda count: (count or 0) < most, lambda n: (n or 0) + 1)

    def note_end(self):
        """Note that a fit has ended because of the rows."""
        self._changed("ended", lambda count: True, lambda count: (count or 0) + 1)

    @property
    def n_ended(self):
        """Number of fits for which this was so."""
        with self._entries() as entries:
            count = self._numbers.get("ended") if entries is None else entries.number("ended")
        return count or 0

    def capped(self, most):
        """Whether sums may be sent with clients of at most some weight, as those before."""
        return self._changed("cap", lambda cap: cap in (None, most), lambda _: most)

    def _changed(self, name, allows, change):
        with self._entries() as entries:
            value = self._numbers.get(name) if entries is None else entries.number(name)
            if not allows(value):
                return False
            self._numbers[name] = change(value)
            if entries is not None:
                entries.set(name, self._numbers[name])
            return True

    def check_hello(self, codes, classes):
        """Raise Refused if no client has enough rows, or classes would reveal single rows.

        Parameters
        ----------
        codes : ndarray of shape (n_rows,)
            Client of each row.
        classes : ndarray or None
            The different targets, where classes are asked for.
        """
        least = self.policy.min_rows
        if np.bincount(codes).max() < least:
            raise Refused(f"no client has min_rows={least} rows")
        if classes is not None and least > 1 and len(classes) * least > len(codes):
            raise Refused(
                f"its {len(codes)} rows have {len(classes)} different targets, which are classes "
                f"only if each has min_rows={least} rows on average"
            )

    def clients_of(self, rows, codes, weights, given, keys=None):
        """Clients that may answer about some rows; that they do is remembered.

        Parameters
        ----------
        rows : ndarray of shape (n,)
            Positions of rows of the place, each once.
        codes : ndarray of shape (n_rows,)
            Client of each row of the place.
        weights : ndarray of shape (n_rows,) or None
            Weights of the rows of the place.
        given : ndarray of shape (n_rows,)
            These as they were given, not weighed by classes.
        keys : list of bytes, default=None
            What the rows of the place are known by in a file.

        Returns
        -------
        allowed : ndarray of shape (n_clients,) of bool
            False for a client that has none of these rows.
        """
        part = np.zeros(len(codes), dtype=bool)
        part[rows] = True if weights is None else weights[rows] > 0
        least = self.policy.min_rows
        allowed = effective_numbers(part if weights is None else weights * part, codes) >= least
        if least > 1:
            with self._entries() as entries:
                if entries is None:
                    self._cut(part, codes, given, allowed)
                else:
                    self._cut_in(entries, part, codes, given, allowed, keys)
        return allowed

    def clients_of_classes(self, rows, y, codes, weights, given, keys=None):
        """Clients that may answer about each class of some rows, or have none of it.

        Parameters
        ----------
        rows, codes, weights, given, keys : object
            As of :meth:`clients_of`.
        y : ndarray of shape (n_rows,) of int
            Class of each row of the place.

        Returns
        -------
        allowed : ndarray of shape (n_clients,) of bool
        """
        allowed = np.ones(codes.max() + 1, dtype=bool)
        rows = rows if weights is None else rows[weights[rows] > 0]
        for label in np.unique(y[rows]) if self.policy.min_rows > 1 else ():
            some = rows[y[rows] == label]
            others = np.bincount(codes[some], minlength=len(allowed)) == 0
            allowed &= others | self.clients_of(some, codes, weights, given, keys)
        return allowed

    def _cut_in(self, entries, part, codes, weights, allowed, keys):
        """The same with cells that are kept in a file, of rows that are gone too."""
        version = entries.number("version")
        if self._cells is None or version != self._version:
            self._read(entries.rows(), codes, len(allowed), keys)
        before, gone = self._cells.copy(), self._gone
        part, weights = np.append(part, gone < 0), np.append(weights, gone)
        self._cut(part, codes, weights, allowed)
        moved = np.flatnonzero(self._cells != before)
        if len(moved):
            # That of a file that cannot be written is no other host's.
            self._version = secrets.randbits(62)
            entries.set("version", self._version)
            cells = (self._cells[moved] - len(allowed)).tolist()
            kept = [keys[i] for i in moved], cells, weights[moved].tolist()
            entries.keep(zip(*kept, strict=True))

    def _read(self, known, codes, n_clients, keys):
        """Cells of a file: of the rows of the place, and of rows of these cells that are gone."""
        most = max((cell for cell, _ in known.values()), default=-1)
        found = [known.pop(key, None) for key in keys]
        cells = [
            code if about is None else n_clients + about[0]
            for code, about in zip(codes.tolist(), found, strict=True)
        ]
        own = set(cells)
        gone = [(n_clients + cell, weight) for cell, weight in known.values()]
        gone = [about for about in gone if about[0] in own]
        self._cells = np.array([*cells, *(cell for cell, _ in gone)])
        self._gone = np.array([weight for _, weight in gone])
        self._owners = np.append(np.arange(n_clients), np.zeros(most + 1, dtype=np.intp))
        self._owners[cells] = codes

    def _cut(self, part, codes, weights, allowed):
        """Cut the cells of the rows at a part of them, or forbid it in `allowed`.

        A cell has the rows of a client that are in the same parts: whatever a server computes of
        sums over parts is about whole cells.
        """
        if self._cells is None:
            # The first cell of each client has been in no part: no answer is about it.
            self._cells, self._owners = codes.copy(), np.arange(len(allowed))
        cells, owners, least = self._cells, self._owners, self.policy.min_rows
        known = np.arange(len(owners)) >= len(allowed)
        sizes = [np.bincount(cells, some, len(owners)) for some in (part, ~part)]
        parts = [weights * some for some in (part, ~part)]
        few = [effective_numbers(some, cells, len(owners)) < least for some in parts]
        cut = (sizes[0] > 0) & (~known | (sizes[1] > 0))
        allowed[owners[cut & (few[0] | (known & few[1]))]] = False
        cut &= allowed[owners]
        moved = part & cut[cells]
        cells[moved] = (len(owners) + np.cumsum(cut) - 1)[cells[moved]]
        self._owners = np.append(owners, owners[cut])


class FitGuard:
    """A guard in one fit, which is over with the first refusal.

    Parameters
    ----------
    guard : Guard
        That of all fits.
    """

    def __init__(self, guard):
        self.guard, self.policy, self.refusal = guard, guard.policy, None
        if guard.n_ended >= MOST_ENDED:
            self.refusal = f"it has ended {MOST_ENDED} fits that did not suit its rows"

    def check(self, call):
        """Raise Refused if a call is not answered, or count it."""
        policy = self.policy
        if self.refusal is None:
            sends = CALLS[call].up if call in CALLS else call in ROW_CALLS
            if sends and not policy.allows(call):
                unnamed = f", as its calls do not name it and {policy.limits}"
                self.refusal = f"it does not answer {call}{unnamed * (policy.calls is None)}"
            elif policy.max_calls is not None and not self.guard.counted(policy.max_calls):
                self.refusal = f"it has answered max_calls={policy.max_calls} calls"
        if self.refusal is not None:
            raise Refused(self.refusal)

    def end(self, reason):
        """Raise Refused, to this question about rows and to all that follow in the fit.

        A place that has done so in many fits answers no more: the questions of one could be
        divided among them.
        """
        if self.refusal is None:
            self.guard.note_end()
            self.refusal = reason
        raise Refused(self.refusal)

    @contextmanager
    def counting(self, reason=None):
        """Let an error in here end the fit: whether rows suit arguments is an answer, too.

        Refused is raised with the reason; without one the error goes on.
        """
        if self.refusal is not None:
            raise Refused(self.refusal)
        try:
            yield
        except (PlaceLost, Forgotten, PrivacyError, RowsShownError):
            raise  # a server knows what they tell
        except Exception:
            if reason is not None:
                self.end(reason)
            self.guard.note_end()
            raise

    def check_made(self, made):
        """Raise Refused if sums over what is made of rows would be about parts of them."""
        told_by = TOLD_BY[made]
        if told_by and self.policy.limits and not self.policy.allows(told_by):
            raise Refused(
                f"it does not make {made!r} of its rows, as its calls do not name {told_by!r} "
                f"and {self.policy.limits}"
            )

    def check_sum(self, size, advice=""):
        """Raise Refused if a sum is over few clients, so many of them."""
        if size < self.policy.min_clients:
            raise Refused(
                # No digits more: they would tell of the rows that say what clients count for.
                f"a sum would be over {int(size)} of its clients, fewer than "
                f"min_clients={self.policy.min_clients}{advice}"
            )


class PolicySite(WrappedSite):
    """Site that keeps to a policy.

    Parameters
    ----------
    site : InProcessSite
        The clients.
    guard : FitGuard
        What the policy has said in this fit.
    rows : Rows
        Those of the place, of which the site has some.
    """

    def __init__(self, site, guard, rows):
        super().__init__(site)
        self.guard, self._rows = guard, rows
        self._codes = np.repeat(np.arange(site.n_clients), site.client_sizes)
        allowed = guard.guard.clients_of(site.row_ids, *rows.known)
        self._own = own = np.zeros(site.n_clients, dtype=np.intp)
        own[self._codes] = rows.codes[site.row_ids]
        weights = rows.given[site.row_ids]
        self._units = weight_by_cluster(self._codes, weights, site.n_clients)
        # There is nothing to know of clients without rows.
        self._mute = (site.client_sizes > 0) & ~(allowed & rows.eligible)[own]
        # A hello says how many rows a client has and what they weigh, not how many a part has.
        sizes, weights = (np.bincount(rows.codes, w)[own] for w in (rows.given > 0, rows.given))
        new = site.client_sizes != sizes
        new |= ~np.isclose(site.client_weights, weights, rtol=1e-12, atol=0.0)
        new &= site.client_sizes > 0
        self.too_few = self._mute & new
        self.client_sizes = np.where(self.too_few, 0, site.client_sizes)
        self.client_weights = np.where(self.too_few, 0.0, site.client_weights)
        self._has_news = (new & ~self._mute).any()

    def facts(self):
        """What is known of the clients: a call that counts where it says more than a hello."""
        if self._has_news:
            self.guard.check("facts")
        return super().facts()

    def answer(self, call, arguments):
        """Answers that are agreed to, see :meth:`Site.answer`; else Refused is raised."""
        self.guard.check(call)
        check_arguments(call, arguments, sizes_of(self.site, arguments))
        message, mute = CALLS[call], self._mute | self._few_rows(call, arguments)
        here = ~mute & (self.client_sizes > 0)
        summed = not all(map(message.is_of_clients, message.up))
        if summed and "labels" not in message.down and not (here.any() or mute.any()):
            self.guard.check_sum(0)
        with self.guard.counting(f"its rows do not suit the arguments of {call}"):
            if mute.any():
                answers = answer_without(self.site, call, arguments, ~mute, compute=False)
            else:
                answers = self.site.answer(call, arguments)
        here = here & ~answers.get("non_finite", mute)
        if summed and here.any() and self.guard.policy.min_clients > 1:
            least = message.least_summed(self.site, arguments, answers, self._units * here)
            several = len(arguments.get("theta", ())) > 1
            self.guard.check_sum(least, ": fewer clusters have more each" * several)
        few = message.about == "counts" and self.guard.policy.min_rows > 1
        return self._without_few(answers) if few else answers

    def _few_rows(self, call, arguments):
        """Clients whose answer would be about fewer than `min_rows` of their rows."""
        least, sizes = self.guard.policy.min_rows, self.client_sizes
        few = np.zeros(self.n_clients, dtype=bool)
        if least == 1:
            return few
        if is_silent(self.guard.policy, call):
            return sizes > 0
        drawn = np.floor(arguments.get("share", 1.0) * sizes)
        if (size := arguments.get("batch_size")) is not None:
            drawn = np.minimum(size, drawn)
        if self.guard.policy.calls is None and (drawn < sizes).any():
            # The server knows which: of several draws it could compute what single rows say.
            raise Refused(
                f"it does not answer {call} about rows that are drawn, as its calls do not name "
                f"it and {self.guard.policy.limits}: batch_size=None takes all rows"
            )
        few |= drawn < least
        if CALLS[call].is_of_classes(arguments):
            few |= self._few_of_class
        return few & (sizes > 0)

    @once
    def _few_of_class(self):
        """Clients that do not answer about the classes of their rows."""
        y, guard = self._rows.y, self.guard.guard
        if y is None or y.dtype.kind not in "iu":
            return np.zeros(self.n_clients, dtype=bool)
        return ~guard.clients_of_classes(self.site.row_ids, y, *self._rows.known)[self._own]

    def _without_few(self, answers):
        """Answers without clients that count few rows in an entry."""
        counts = answers["counts"]
        shares = quotient(counts, counts.sum(axis=1, keepdims=True))
        counts = np.round(shares * self.client_sizes[:, None], 6)
        few = ((counts > 0) & (counts < self.guard.policy.min_rows)).any(axis=1)
        answered = answers.pop("answered", np.ones(self.n_clients, dtype=bool))
        for value in answers.values():
            value[few] = 0
        return {**answers, "answered": answered & ~few}

    def derive(self, step, *arguments):
        """Sites that keep to the policy; of some clients each of them once.

        Clients that may not answer about parts of their rows are in both, or hold out none.
        """
        self.guard.check_made(step)
        if step == "subset":
            check_positions("clients", arguments[0], self.n_clients)
        made = super().derive(step, *arguments)
        if step in ("held_out", "folds"):
            size, seed = arguments
            undivided = np.any([site.too_few for site in made], axis=0)
            if undivided.any():
                made = super().derive(step, size, seed, undivided)
        return made

    def _of(self, site, clients=None):
        return PolicySite(site, self.guard, self._rows)
