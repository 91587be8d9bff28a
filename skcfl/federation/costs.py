"""What a fit costs on another network, of more or other clients."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._checks import about, whole_number
from .._typing import Array

__all__ = ["Cost", "estimate_cost"]

#: Bytes of a message (up, down) beside its requests.
MESSAGE = np.array([85.0, 85.0])
#: Bytes of a client's sizes under a model, and of its place.
FACTS, PLACES = 17.0, 16.0
#: Bytes (up, down) of a fit's model and units.
OPENING = np.array([900.0, 2800.0])

# Private clients: bytes (up, down) of a site, as messages to sites have them.
#: The first message, and its part for each client: a name that was drawn, a size and a weight.
PRIVATE_HELLO, PRIVATE_CLIENT = np.array([648.0, 129.0]), np.array([104.0, 8.0])
#: How a site makes its rows, in the next message.
PRIVATE_ROWS = np.array([0.0, 384.0])
#: Two exchanges of the keys of masks, and their part for each site; certificates come on top.
KEYS, KEY_OF_A_SITE = np.array([362.0, 300.0]), np.array([0.0, 94.5])


@dataclass(frozen=True)
class Cost:
    """Time and bytes of a fit, as :func:`~skcfl.federation.estimate_cost` estimates them.

    Attributes
    ----------
    wall_time : float
        Seconds from the first call to the last: the sum of the five below.
    latency_time : float
        Seconds of waiting for messages, however short they are.
    transfer_time : float
        Seconds in which numbers are on their way.
    packing_time : float
        Seconds in which requests and answers are packed and read.
    client_time : float
        Seconds in which the clients of a call compute, at the same time.
    server_time : float
        Seconds of the server's own work.
    calls : int
        Exchanges, one after the other; with private or masked clients the introductions, too.
    clients_per_call : float
        Mean number of clients that are asked in a call.
    bytes_up, bytes_down : float
        Bytes of all sites together, to the server and from it.
    client_bytes_up, client_bytes_down : float
        The same of a client in the mean over all clients.

    Examples
    --------
    >>> from skcfl.federation import Cost
    >>> Cost(3.0, 1.0, 1.0, 0.0, 0.5, 0.5, 10, 5.0, 8e3, 8e3, 80.0, 80.0).wall_time
    3.0
    """

    wall_time: float
    latency_time: float
    transfer_time: float
    packing_time: float
    client_time: float
    server_time: float
    calls: int
    clients_per_call: float
    bytes_up: float
    bytes_down: float
    client_bytes_up: float
    client_bytes_down: float


def estimate_cost(
    estimator: Any,
    *,
    latency: float,
    uplink: float,
    downlink: float,
    seconds_per_row: float,
    n_clients: int | None = None,
    participants: float | None = None,
    rows_per_client: float | None = None,
    n_sites: int | None = None,
    server_link: float = np.inf,
    server_seconds: float = 0.0,
    seconds_per_request: float = 0.0,
) -> Cost:
    """Estimate what a fit costs on a network, from the messages that were counted.

    A call takes the latency, the time in which the numbers of a site pass its link or those of all
    sites that of the server, whatever is longer, and the time in which a site goes over its rows.
    Sites work at the same time, calls follow one another; what a fit asked in lockstep is one
    call. A site of several clients, such as a worker or a hospital with many, is sent once what is
    for all of them, such as the models of the clusters, and sends once what is a sum over them.
    Sites of private or masked clients send sums only. The exchanges in which they introduce
    themselves and agree on keys are added.

    Parameters
    ----------
    estimator : estimator
        A fitted one, in any federation. Its calls, and the numbers that a client sends and is sent
        in one, are taken to be those of the fit that is asked about.
    latency : float
        Seconds of a message to a client and of one back.
    uplink, downlink : float
        Bits a second that a site can send and receive.
    seconds_per_row : float
        Seconds that a client computes for a row in a call: of a fit in one process with one
        thread, its time over ``calls_`` and the number of rows.
    n_clients : int, default=None
        Number of clients; None is that of fit.
    participants : float, default=None
        How many of them are asked in a call; None is the share that was asked in fit.
    rows_per_client : float, default=None
        Rows of a client; None is the mean of fit, which private clients do not say.
    n_sites : int, default=None
        Number of sites, or workers, whose clients share a link, messages and a processor; None is
        one per client.
    server_link : float, default=inf
        Bits a second that the server can send, and receive.
    server_seconds : float, default=0.0
        Seconds of the server's own work in the whole fit.
    seconds_per_request : float, default=0.0
        Seconds in which a request to a site and its answer are packed and read, half of them at
        the server for one site after the other, half at the sites at the same time. A message in
        lockstep holds several requests.

    Returns
    -------
    cost : Cost

    Raises
    ------
    ValueError
        If a number is not positive, there are more participants than clients, or more sites, or
        the clients were private and `rows_per_client` is None, or the local model is a
        SklearnModel.
    NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    Phones, 1000 of 100,000 asked at a time:

    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import estimate_cost
    >>> data = make_clustered_regression(n_clients=40, n_clusters=3, random_state=0)
    >>> model = IFCARegressor(n_clusters=3, random_state=0)
    >>> model = model.fit(data.X, data.y, groups=data.groups)
    >>> cost = estimate_cost(
    ...     model, latency=0.1, uplink=1e6, downlink=1e6, seconds_per_row=1e-6,
    ...     n_clients=100_000, participants=1000,
    ... )
    >>> cost.calls == model.calls_
    True
    >>> cost.clients_per_call
    1000.0
    """
    with about("estimator"):
        check_is_fitted(estimator, "client_calls_")
        if getattr(getattr(estimator, "model_", None), "fits_whole", False):
            raise ValueError(
                "estimator must have a local model of parameters: what a SklearnModel sends, its "
                "fitted estimators, is not counted."
            )
    private, calls = vars(estimator).get("_is_private", False), estimator.calls_
    n_fit = estimator._n_asked if private else len(estimator.groups_)
    asked_in_fit = n_fit if private else estimator.client_calls_ / max(calls, 1)
    times = {"latency": latency, "seconds_per_row": seconds_per_row}
    times |= {"server_seconds": server_seconds, "seconds_per_request": seconds_per_request}
    rates = {"uplink": uplink, "downlink": downlink, "server_link": server_link}
    open_ = {"rows_per_client": rows_per_client, "participants": participants}
    given = {name: value for name, value in open_.items() if value is not None}
    for name, value in {**times, **rates, **given}.items():
        _check_number(name, value, name in times)
    n = whole_number(n_clients, "n_clients", optional=True) or n_fit
    n_sites = whole_number(n_sites, "n_sites", optional=True)
    asked = asked_in_fit / n_fit * n if participants is None else float(participants)
    sites = asked if n_sites is None else min(n_sites, asked)
    if asked > n:
        raise ValueError(f"participants={participants!r} is more than the {n} clients.")
    if n_sites is not None and n_sites > n:
        raise ValueError(f"n_sites={n_sites!r} is more than the {n} clients.")
    if private and rows_per_client is None:
        if seconds_per_row > 0.0:
            raise ValueError(
                "rows_per_client must be given where clients are private: they do not say how "
                "many rows they have."
            )
        rows_per_client = 1.0
    rows = estimator._n_rows / n_fit if rows_per_client is None else float(rows_per_client)
    at_a_site = asked / max(sites, 1e-300)
    computing = calls
    if private:
        calls += 3 if estimator._is_masked else 1
        up, down = map(float, _bytes_of_a_private_site(estimator, calls, at_a_site, sites))
    else:
        up, down = map(float, _bytes_of_a_site(estimator, at_a_site))
    links = 8.0 * np.array([up / uplink, down / downlink])
    server = 8.0 * sites * np.array([up, down]) / server_link
    times = {
        "latency_time": calls * float(latency),
        "transfer_time": calls * float(np.maximum(links, server).sum()),
        "packing_time": estimator._requests * 0.5 * (1.0 + sites) * float(seconds_per_request),
        "client_time": computing * at_a_site * rows * float(seconds_per_row),
        "server_time": float(server_seconds),
    }
    total = calls * sites
    return Cost(
        wall_time=sum(times.values()),
        **times,
        calls=calls,
        clients_per_call=asked,
        bytes_up=total * up,
        bytes_down=total * down,
        client_bytes_up=total * up / n,
        client_bytes_down=total * down / n,
    )


def _bytes_of_a_site(estimator: Any, n_clients: float) -> Array:
    """Mean bytes of a call to and from a site where so many clients are asked, (up, down)."""
    model = getattr(estimator, "model_", None)
    dtype = estimator.cluster_centers_.dtype if model is None else np.dtype(model.dtype)
    calls, client_calls = max(estimator.calls_, 1), max(estimator.client_calls_, 1)
    floats = np.array([estimator.floats_up_, estimator.floats_down_])
    around = np.array(estimator._envelopes) / calls + MESSAGE
    alone = n_clients * dtype.itemsize * floats / client_calls
    if n_clients <= 1:
        return alone + around
    shared, own = map(np.array, estimator._site_bytes)
    # What clients that share nothing would be sent is the most.
    sent = np.minimum(alone, shared / calls + n_clients * own / client_calls)
    if model is None:
        return sent + around
    # A site begins with the id, the rows and the weight of each client, is sent their places, and
    # says how many rows each has under the model.
    opening = n_clients * np.array([estimator.groups_.itemsize + 16.0 + FACTS, PLACES])
    return sent + around + (opening + OPENING) / calls


def _bytes_of_a_private_site(
    estimator: Any, calls: int, n_clients: float, n_sites: float
) -> Array:
    """Mean bytes of a call to and from a site of private clients, (up, down)."""
    total = np.array(estimator._site_bytes[0]) + np.array(estimator._envelopes)
    total = total + PRIVATE_HELLO + PRIVATE_ROWS + n_clients * PRIVATE_CLIENT
    if estimator._is_masked:
        # Each sum names its parties, in a byte each.
        parties = np.array([0.0, n_sites * estimator.calls_])
        total = total + KEYS + n_sites * KEY_OF_A_SITE + parties
    return total / calls


def _check_number(name: str, value: Any, may_be_zero: bool) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (value >= 0 if may_be_zero else value > 0):
        allowed = "0 or positive" if may_be_zero else "positive"
        raise ValueError(f"{name} must be a {allowed} number, got {value!r}.")
