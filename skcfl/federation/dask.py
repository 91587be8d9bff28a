"""Clients on the workers of a dask cluster: one actor per worker holds the rows of its clients.

dask carries the messages; who holds what, and what is lost with a worker, is said in
:mod:`skcfl.federation.remote`.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from collections.abc import Hashable, Sequence
from itertools import pairwise
from numbers import Real
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .._checks import needs
from ..exceptions import FederationError
from .hosted_parts import Host
from .policy import check_policy
from .remote import RemoteFederation
from .serialization import array_bytes, versions
from .sites import PlaceLost, ask_each
from .transport import Transport

if TYPE_CHECKING:
    from distributed import Client

    from .policy import SitePolicy

__all__ = ["DaskFederation"]

# Seconds between two looks at whether a worker that does not answer is still there.
LOOK = 0.25
# Bytes of arrays up to which a message is packed.
PACKED_BYTES = 2**16
# Seconds in which an answer that has come can be taken, however busy the machine is.
THERE = 30.0
# Seconds in which a worker answers that can be called without the scheduler.
REACH = 5.0
# Clients that did not reach a worker: they do not wait for the others.
DISTANT: WeakSet[Any] = WeakSet()
# Seconds to wait for a worker where there is none.
WAIT_FOR_WORKERS = 30.0


class DaskFederation(RemoteFederation):
    """Clients whose rows are on the workers of a dask cluster.

    Parts in a row are on one worker. On every worker an actor holds the rows of its parts,
    and answers what the server asks; the server, the process of this object, gets what clients
    send and no row.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster, whose workers must have skcfl installed.
    parts : list
        The rows. Each part is ``(X, y, groups)`` or ``(X, y, groups, sample_weight)``, a function
        that returns these and is called on the worker, or a ``dask.delayed`` or future of them.
        All rows of a client are in one part.
    workers : list of str, default=None
        Addresses of the workers to use; None are those that the cluster has now.
    timeout : float or None, default=None
        Seconds in which a worker has to answer a call. The clients of one that does not are
        silent until it has done what it was asked. None waits as long as the worker is there.
    rebuild : bool, default=False
        Whether the parts of a worker that is lost, or does not answer in time, are loaded again on
        another one, so that the fit goes on with all clients, unless they keep models between
        calls. All parts must be functions or delayed.
    n_jobs : int or None, default=None
        Threads of a computation on a worker; None is 1, -1 all processors.
    policy : SitePolicy, default=None
        What the clients agree to answer, kept by every worker; None is everything.
    min_clients : int, default=1
        How many clients have to answer when they are asked.
    retries : int, default=10
        How often silent clients are asked again where all are needed.

    Raises
    ------
    ImportError
        If dask.distributed is not installed.
    TypeError
        If `client` is none, or a part is something else.
    ValueError
        If there are no parts or workers, or `rebuild` is True and a part cannot be loaded again.
    FederationError
        If a worker is lost while the parts are loaded, or has another version of skcfl.

    See Also
    --------
    InProcessFederation : Clients of this process.
    FanOutFederation : Clients of several federations.

    Notes
    -----
    A part that is no ``(X, y, groups)``, has no rows, or other features, types or ids than the
    others, and a client in two parts are errors that name the parts, before anything is computed.
    An exception of the worker's own code, or of a function that loads a part, is raised here too;
    only a worker that is gone or late makes its clients silent.

    Where the client reaches a worker, calls do not go through the scheduler; a client made with
    ``direct_to_workers=False`` keeps to it.

    dask lets its workers hand memory back to the system at once
    (``MALLOC_TRIM_THRESHOLD_``), to get it anew for every block of clients. Of a cluster that is
    there for federations take it out before it starts, by
    ``dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None})``:
    calls on many rows then took less than half of the CPU time.

    Examples
    --------
    >>> from functools import partial
    >>> from skcfl import IFCARegressor
    >>> from skcfl.federation import DaskFederation
    >>> def load(path):  # runs on the worker
    ...     frame = pandas.read_csv(path)
    ...     return frame[["age", "dose"]], frame["outcome"], frame["hospital"]
    >>> parts = [partial(load, path) for path in ("north.csv", "south.csv")]
    >>> federation = DaskFederation(client, parts)  # doctest: +SKIP
    >>> model = IFCARegressor().fit_federation(federation)  # doctest: +SKIP
    """

    def __init__(
        self,
        client: Client,
        parts: Sequence[Any],
        *,
        workers: Sequence[str] | None = None,
        timeout: float | None = None,
        rebuild: bool = False,
        n_jobs: int | None = None,
        policy: SitePolicy | None = None,
        min_clients: int = 1,
        retries: int = 10,
    ) -> None:
        _check_client(client)
        sources = [_checked_part(k, part) for k, part in enumerate(parts)]
        if not sources:
            raise ValueError("parts must hold at least one part, got none.")
        options = {"n_jobs": n_jobs, "policy": policy}
        self._start(client, sources, workers, timeout, rebuild, options, min_clients, retries)

    def _start(self, client, sources, workers, timeout, rebuild, options, min_clients, retries):
        check_policy(options["policy"])
        self.carries_objects = options["policy"] is None
        if timeout is not None and not (
            isinstance(timeout, Real) and not isinstance(timeout, bool) and timeout > 0
        ):
            raise ValueError(f"timeout must be a positive number or None, got {timeout!r}.")
        fixed = [name for _, name, part in sources if not _can_be_loaded_again(part)]
        if rebuild and fixed:
            raise ValueError(
                "rebuild=True needs parts that can be loaded again, functions or delayed; "
                f"{fixed[0]} is neither."
            )
        if rebuild and options["policy"] is not None and options["policy"].privacy is not None:
            raise ValueError(
                "rebuild must be False under privacy: what a lost worker's clients have spent is "
                "lost with it, got rebuild=True."
            )
        workers = _workers_of(client, workers)
        n = min(len(workers), len(sources))
        ends = [k * len(sources) // n for k in range(n + 1)]
        shares = [sources[here:end] for here, end in pairwise(ends)]
        transports = [
            DaskTransport(client, address, share, options, timeout, rebuild)
            for address, share in zip(workers, shares, strict=False)
        ]
        super().__init__(transports, min_clients=min_clients, retries=retries)
        for transport in transports:
            transport.timeout = None  # to load takes as long as it takes
        try:
            ask_each(self._roots, "load", whole=True)
        finally:
            for transport in transports:
                transport.timeout = timeout

    @classmethod
    def from_dataframe(
        cls,
        client: Client,
        frame: Any,
        target: Hashable | None,
        client_column: Hashable,
        *,
        weight: Hashable | None = None,
        npartitions: int | None = None,
        workers: Sequence[str] | None = None,
        timeout: float | None = None,
        n_jobs: int | None = None,
        policy: SitePolicy | None = None,
        min_clients: int = 1,
        retries: int = 10,
    ) -> DaskFederation:
        """Federation of the rows of a dask DataFrame, shuffled by client.

        Parameters
        ----------
        client : distributed.Client
            Connected to the cluster.
        frame : dask.dataframe.DataFrame
            Columns of features, the target, the clients' ids, and maybe weights.
        target : hashable or None
            Column of the target; None for unsupervised local models.
        client_column : hashable
            Column of the clients' ids.
        weight : hashable, default=None
            Column of the rows' weights.
        npartitions : int, default=None
            Partitions to shuffle the clients to; None is the number of workers.
        workers, timeout, n_jobs, policy, min_clients, retries : object
            As of :class:`DaskFederation`.

        Returns
        -------
        federation : DaskFederation

        Raises
        ------
        ValueError
            If a column is not there.
        """
        _check_client(client)
        from dask import delayed
        from distributed import wait

        named = {"target": target, "client_column": client_column, "weight": weight}
        for name, column in named.items():
            if column is None and name != "client_column":
                continue
            if column not in list(frame.columns):
                raise ValueError(
                    f"{name} must be a column of the frame, {list(frame.columns)}, got {column!r}."
                )
        n = len(_workers_of(client, workers)) if npartitions is None else npartitions
        shuffled = frame.shuffle(on=client_column, npartitions=n)
        split = delayed(_split, pure=False)
        futures = client.compute(
            [split(part, target, client_column, weight) for part in shuffled.to_delayed()]
        )
        wait(futures)
        sources = [(k, f"part {k}", future) for k, future in enumerate(futures)]
        self = object.__new__(cls)
        options = {"n_jobs": n_jobs, "policy": policy, "skip_empty": True}
        self._start(client, sources, workers, timeout, False, options, min_clients, retries)
        return self


class DaskTransport(Transport):
    """The way to an actor on one worker.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    address : str
        The worker.
    parts : list of (int, str, object)
        Number, name and rows of each part.
    options : dict
        Further arguments of :class:`~skcfl.federation.hosted_parts.Host`.
    timeout : float or None
        Seconds in which it has to answer.
    rebuild : bool
        Whether to start again elsewhere if it is lost.
    """

    def __init__(self, client, address, parts, options, timeout, rebuild):
        self.client, self.parts, self.options = client, parts, options
        self.timeout, self.rebuild, self._lock = timeout, rebuild, Lock()
        self._begin(address)

    def _begin(self, address):
        """Submit an actor, which is not waited for."""
        self.address, self.name = address, f"worker {address}"
        self._actor, self._late, self._down, self._gone = None, [], False, False
        sources = [_on_worker(self.client, part, address) for *_, part in self.parts]
        labels = [(number, name) for number, name, _ in self.parts]
        self._future = self.client.submit(
            _HostActor,
            labels,
            {**self.options, "versions": versions()},
            *sources,
            actor=True,
            workers=[address],
            allow_other_workers=False,
            pure=False,
        )
        if not self.rebuild:
            self.parts = None  # they are on the worker

    def start(self, request):
        """Send a request; see :meth:`~skcfl.federation.transport.Transport.start`."""
        wait = self.start_several([request])
        return lambda: wait()[0]

    def start_several(self, requests):
        """Send requests as one; see :meth:`~skcfl.federation.transport.Transport.start`."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        self._late = [answer for answer in self._late if not answer.done()]
        future, answer, error, packed = self._future, None, None, b""
        try:
            if self._late:
                raise PlaceLost(f"{self.name} has not done yet what it was asked before.")
            if self._actor is None:
                actor = self._awaited(future, future, deadline)
                self._actor = _reached(self.client, actor, self.address)
            packed = _packed(requests)
            self._count(down=_n_bytes(packed))
            answer = self._actor.ask_packed(packed)
        except PlaceLost as lost:
            error = lost
        except RuntimeError:  # the actor is known to be lost
            error = self._lost(future)

        def wait():
            if error is None:
                out = self._awaited(answer, future, deadline)
                # A call of an actor is a cycle that holds its arguments, as those who wait for
                # it may be, and few large ones do not wake the collector.
                large = not isinstance(out, bytes)
                if not isinstance(packed, bytes):
                    packed.clear()
                    large = True
                if large:
                    gc.collect(1)
                self._count(up=_n_bytes(out))
                return _unpacked(out)
            self._down = True
            raise error

        return wait

    def _awaited(self, answer, future, deadline):
        """What an actor answers, or the actor of its own future."""
        while True:
            left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
            # What has come is there at once, but the actor itself is fetched.
            done = answer is not future and answer.done()
            try:
                return answer.result(timeout=THERE if done else max(left, 0.0))
            except TimeoutError:
                came = answer is not future and answer.done()
                gone = done or (self._is_gone(future) and not came)
                if not gone and (left > 0 or came):
                    continue
                self._down = True
                if gone:
                    raise self._lost(future) from None
                if answer is not future:
                    self._late.append(answer)
                raise PlaceLost(
                    f"{self.name} has not answered in timeout={self.timeout} s."
                ) from None
            except Exception as error:
                # What goes wrong in a Host comes as an answer.
                self._down = True
                raise self._lost(future) from error

    def _is_gone(self, future):
        """If True, there are no clients to answer."""
        if future.status != "pending":
            return future.status != "finished"
        return self.address not in _present(self.client)

    def _lost(self, future):
        """The exception of a worker that is gone, or what its actor could not be made for."""
        if future.status == "error":
            error = future.exception()
            if type(error) is not RuntimeError and type(error).__name__ != "KilledWorker":
                return error
        self._gone = True
        return PlaceLost(f"{self.name} is lost.")

    @property
    def reachable(self):
        """Whether the worker may answer now; see ``Transport.reachable``."""
        return not self._gone and all(answer.done() for answer in self._late)

    def restore(self):
        """Start an actor with the same parts on another worker, if there is one."""
        if not self.rebuild:
            return False
        with self._lock:
            if not self._down:
                return True  # another thread has done it
            others = [worker for worker in _workers_of(self.client) if worker != self.address]
            if not others:
                return False
            self._begin(min(others, key=self._n_actors))
        return True

    def _n_actors(self, address):
        """How many actors of the cluster are on a worker, and its address."""
        held = self.client.has_what([address]).get(address, ())
        return sum(str(key).startswith(_HostActor.__name__) for key in held), address


class _HostActor(Host):
    """Host as an actor; the rows of its parts are arguments, so that dask finds the delayed."""

    def __init__(self, labels, options, *sources):
        theirs, mine = options["versions"], versions()
        options = {name: value for name, value in options.items() if name != "versions"}
        if theirs != mine:
            from distributed import get_worker

            raise FederationError(
                "all workers must have the version of skcfl, and of its calls, that the server "
                f"has: {get_worker().address} has {mine}, the server {theirs}."
            )
        parts = [(*label, source) for label, source in zip(labels, sources, strict=True)]
        super().__init__(parts, **options)

    def ask_packed(self, requests):
        """Answer requests."""
        return _packed([self.ask(*request) for request in _unpacked(requests)])


def _reached(client, actor, address):
    """The actor, called on its worker itself where the client reaches it.

    Calls go through the scheduler otherwise, which connects to the worker for each of them, and
    holds the messages, too.
    """
    if client.direct_to_workers is not None or client in DISTANT:
        return actor  # somebody has decided, or it was tried

    async def greet():
        await asyncio.wait_for(client.rpc(address).identity(), REACH)

    class DirectActor(type(actor)):
        @property
        def _worker_rpc(self):
            return self._client.rpc(self._address)

    try:
        client.sync(greet)
    except (OSError, TimeoutError):
        DISTANT.add(client)
        return actor
    actor.__class__ = DirectActor
    return actor


def _packed(message):
    """Small messages as bytes, which dask sends in half the time; it does not copy large ones."""
    return message if array_bytes(message) > PACKED_BYTES else pickle.dumps(message, protocol=5)


def _n_bytes(message):
    """Bytes of a message, of a large one those of its arrays."""
    return len(message) if isinstance(message, bytes) else array_bytes(message)


def _unpacked(message):
    return pickle.loads(message) if isinstance(message, bytes) else message


def _split(frame, target, client_column, weight):
    """Rows of a partition."""
    others = [column for column in (target, client_column, weight) if column is not None]
    y = None if target is None else frame[target].to_numpy()
    weights = None if weight is None else frame[weight].to_numpy()
    return frame.drop(columns=others), y, frame[client_column].to_numpy(), weights


def _check_client(client):
    with needs("DaskFederation needs dask.distributed: pip install 'skcfl[dask]'."):
        from distributed import Client
    if not isinstance(client, Client) or client.asynchronous:
        raise TypeError(f"client must be a synchronous distributed.Client, got {client!r}.")


def _checked_part(k, part):
    """Number, name and rows of a part."""
    from dask import is_dask_collection
    from distributed import Future

    name = f"part {k}"
    delayed = is_dask_collection(part) or isinstance(part, Future)
    if not delayed and not callable(part) and not isinstance(part, (tuple, list)):
        raise TypeError(
            f"{name} must be (X, y, groups), a function or delayed, got {type(part).__name__}."
        )
    return k, name, part


def _can_be_loaded_again(part):
    from dask import is_dask_collection

    return is_dask_collection(part) or callable(part)


def _on_worker(client, part, address):
    """Rows of a part as an argument of an actor on a worker."""
    from dask import is_dask_collection
    from distributed import Future

    if isinstance(part, Future):
        return part
    if is_dask_collection(part):
        return client.compute(part, workers=[address], allow_other_workers=False)
    if callable(part):
        return part
    (future,) = client.scatter([tuple(part)], workers=[address], hash=False)
    return future


def _present(client):
    """Workers that the scheduler has; none if it is gone itself."""
    # Not scheduler_info: a thread of dask's may empty what it read before it is returned.
    try:
        return sorted(client.nthreads())
    except OSError:
        return []


def _workers_of(client, workers=None):
    """Addresses of the workers to use, of all if None."""
    present = _present(client)
    if not present:
        try:
            client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
        except TimeoutError as error:
            raise FederationError("The cluster has no workers.") from error
        present = _present(client)
    if workers is None:
        return present
    unknown = sorted(set(workers) - set(present))
    if unknown or not workers:
        raise ValueError(f"workers must be among {present}, got {list(workers)}.")
    return list(workers)
