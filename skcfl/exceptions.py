"""Warnings and errors of the package."""

__all__ = [
    "CheckpointError",
    "FederationError",
    "MessageError",
    "MissingClientWarning",
    "NotEnoughMemoryError",
    "PrivacyError",
    "PrivacyWarning",
    "RejectedClientWarning",
    "RowsShownError",
    "SingleClientWarning",
    "UnitsWarning",
]


class CheckpointError(ValueError):
    """Raised where a fit cannot go on from a checkpoint, or must not begin one.

    The file is damaged, of another estimator, other clients or another version of skcfl, or
    written by a fit that is running; the message says which.

    Examples
    --------
    >>> from skcfl import FedAvgRegressor
    >>> from skcfl.exceptions import CheckpointError
    >>> from skcfl.federation import InProcessFederation
    >>> federation = InProcessFederation([[0.0], [1.0]], [0.0, 1.0], ["a", "b"])
    >>> try:
    ...     FedAvgRegressor().fit_federation(federation, checkpoint="nowhere/fit.journal")
    ... except CheckpointError as error:
    ...     print(error)
    checkpoint='nowhere/fit.journal': its folder is not there.
    """


class MissingClientWarning(UserWarning):
    """Issued when clients that answer other calls have no part in the fit, or not in all of it.

    Clients that never answer one kind of call, for example of a site with another version, have
    no part in the fit from then on, nor have clients in this process that are silent under their
    policy. A fit starts again, twice at most, with clients that were away when they were needed
    and are back. ``missing_clients_`` has the ids, the message the reason.

    Examples
    --------
    >>> import warnings
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import Faults, InProcessFederation
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> faults = Faults(dead=["client00"], calls=["best_response_sums"])
    >>> federation = InProcessFederation(data.X, data.y, data.groups, faults=faults)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     model = IFCARegressor(n_clusters=2, random_state=0).fit_federation(federation)
    >>> print(caught[0].message)
    1 of 6 clients left all of 10 calls of 'best_response_sums' unanswered while they answered \
    others: 'client00'. The fit goes on without them (missing_clients_).
    >>> model.missing_clients_
    array(['client00'], dtype='<U8')
    """


class NotEnoughMemoryError(MemoryError):
    """Raised before something is allocated that does not fit into the memory available.

    The message says how much is needed, how much there is, and what would fit.

    Examples
    --------
    >>> from skcfl.exceptions import NotEnoughMemoryError
    >>> issubclass(NotEnoughMemoryError, MemoryError)
    True
    """


class FederationError(RuntimeError):
    """Raised where fewer clients answer than are needed.

    The message names the clients that are missing. Fit again when they are back, or set the
    federation's ``min_clients`` to as few as are enough.

    Examples
    --------
    >>> from skcfl import FedAvgRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.exceptions import FederationError
    >>> from skcfl.federation import Faults, InProcessFederation
    >>> data = make_clustered_regression(n_clients=4, n_clusters=2, random_state=0)
    >>> faults = Faults(dead=["client00"])
    >>> federation = InProcessFederation(
    ...     data.X, data.y, data.groups, faults=faults, min_clients=4
    ... )
    >>> try:
    ...     FedAvgRegressor().fit_federation(federation)
    ... except FederationError as error:
    ...     print(error)
    3 of 4 clients answer, and min_clients=4: 'client00' did not when last asked.
    """


class MessageError(ValueError):
    """Raised where bytes are no message, or an object cannot be sent as one.

    Messages between a server and its sites hold numbers, text, arrays and local models. The text
    says what else was found, or that the two ends have different versions of skcfl.

    Examples
    --------
    >>> from skcfl.exceptions import MessageError
    >>> from skcfl.federation.serialization import loads
    >>> try:
    ...     loads(b"cos")
    ... except MessageError as error:
    ...     print(error)
    these bytes are no message of this version of skcfl.
    """


class PrivacyError(RuntimeError):
    """Raised where clients under privacy are asked for what they do not release.

    The method needs single answers, or the privacy budget of the clients is spent. The message
    says which, and names the methods that need sums only.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import CLoVERegressor
    >>> from skcfl.exceptions import PrivacyError
    >>> from skcfl.federation import InProcessFederation
    >>> X, groups = np.eye(4), [0, 0, 1, 1]
    >>> federation = InProcessFederation(X, X[:, 0], groups)
    >>> private = federation.private(4.0, bounds={"features": (0, 1), "target": (0, 1)})
    >>> try:
    ...     CLoVERegressor(n_clusters=2).fit_federation(private)
    ... except PrivacyError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    CLoVERegressor needs single answers of clients, ... give sums: PartialPooling, FedAvg...
    """


class PrivacyWarning(UserWarning):
    """Issued by a private fit if the noise would drown what clients have in common.

    The noise is known before anything is released. Nothing is released then, and each client has
    a model of its own rows. The message says how large the noise would be. Masked fits without
    noise issue it for clusters with too few clients, which have models without meaning.

    Examples
    --------
    >>> import warnings
    >>> from skcfl.exceptions import PrivacyWarning
    >>> warnings.simplefilter("error", PrivacyWarning)  # stop there
    >>> warnings.simplefilter("default", PrivacyWarning)  # back to a warning
    """


class RejectedClientWarning(UserWarning):
    """Issued at the end of a fit in which clients sent numbers that are not finite.

    They take no part: the fit started again without them. ``rejected_clients_`` has their ids;
    their models are those of clients that do not answer.

    Examples
    --------
    >>> import warnings
    >>> from skcfl.exceptions import RejectedClientWarning
    >>> warnings.simplefilter("error", RejectedClientWarning)  # stop at such clients
    >>> warnings.simplefilter("default", RejectedClientWarning)  # back to a warning
    """


class RowsShownError(RuntimeError):
    """Raised by clients that are asked for what would show their rows.

    The methods of the package do not ask for it. One of your own that does can sum over clients,
    or let a client compute by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.calls.curvatures import Hessians
    >>> from skcfl.exceptions import RowsShownError
    >>> from skcfl.federation import InProcessFederation
    >>> from skcfl.models import LinearModel
    >>> federation = InProcessFederation(np.eye(4), np.arange(4.0), [0, 0, 1, 1])
    >>> pool = federation.open(LinearModel().bind(4))
    >>> theta = np.zeros((2, pool.n_params))
    >>> pool.ask(Hessians, theta, labels=np.zeros(2, dtype=int)).shape
    (2, 5, 5)
    >>> try:
    ...     pool.ask(Hessians, theta, labels=np.arange(2))
    ... except RowsShownError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    The Hessian of one client ... would show its rows; 2 such Hessians were asked for. ...
    """


class SingleClientWarning(UserWarning):
    """Issued by ``fit`` when nothing says which rows belong to which client.

    All rows are then one client and one model is fitted, which is rarely what the user of a
    clustered method wants. Pass ``groups=`` to ``fit``, or set ``group_col``. The usual cause is a
    tool such as ``GridSearchCV`` that hands ``groups`` to the splitter and not to the estimator.

    Examples
    --------
    >>> import warnings
    >>> from skcfl.exceptions import SingleClientWarning
    >>> warnings.simplefilter("error", SingleClientWarning)  # refuse to go on
    >>> warnings.simplefilter("default", SingleClientWarning)  # back to a warning
    """


class UnitsWarning(UserWarning):
    """Issued by ``fit`` when features or targets have units in which a fit may go wrong.

    A feature is far larger at a client than at most others: the client may have other units, such
    as millimetres for metres, or a false value. It has no part in the scales of
    ``standardize=True``, which would make the others' features tiny, but its rows are in the fit.
    The message names clients and features.

    Or networks that train on rows as they are given, modules of PyTorch and those with
    ``standardize=False``, begin with a mean loss of more than 1000: features or targets are far
    from unit size.

    Examples
    --------
    >>> import warnings
    >>> from skcfl.exceptions import UnitsWarning
    >>> warnings.simplefilter("error", UnitsWarning)  # stop at such clients
    >>> warnings.simplefilter("default", UnitsWarning)  # back to a warning
    """
