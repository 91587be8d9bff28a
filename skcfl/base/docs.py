"""Docstrings of the estimators, completed by those of their bases.

Three flavours of every method have some thirty parameters in common. A class (or a mixin) has
numpydoc sections "Parameters" and "Attributes" with what it adds to its bases, or changes.
:func:`document` completes them with the texts of the bases and of :class:`Shared`: parameters in
the order of the signature, with its defaults. A line ``{parameters}`` or ``{attributes}`` is a
section without entries.

An attribute without a type and a text takes those of :class:`Optional`. ``name, name : None``
says that a class does not have attributes of its bases.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type)


class Shared:
    """Texts of parameters and attributes that most methods have.

    Parameters
    ----------
    model : LocalModel or None
        Model that every client trains, from :mod:`skcfl.models`. It decides whether the estimator
        is a classifier, a regressor or unsupervised. None is ``LinearModel()``, least squares.
        Set its parameters as ``model__<name>``.
    loss : str
        Loss of a linear model.
    alpha : "auto" or float
        Strength of the L2 penalty: ``alpha / 2`` times the squared norm of the coefficients is
        added to each client's mean loss, as in ``Ridge(alpha=alpha * n_samples)``. The intercept
        is free. "auto" is a standard normal prior on standardised coefficients, or narrower with
        more than twelve features, once per model (see the user guide).
    standardize : bool
        If True, models are trained on features of mean 0 and variance 1 over the rows of all
        clients, networks on such targets too, so that penalty and clusters do not depend on
        units. Sparse features are scaled only. See :ref:`units`.
    class_weight : dict, "balanced" or None
        Weights of the classes as in scikit-learn. "balanced" gives all classes the same total
        weight over the rows of all clients. None is 1 for all.
    fit_intercept : bool
        If True, the models have an intercept.
    hidden_layer_sizes : int or sequence of int
        Units of each hidden layer of an :class:`~skcfl.models.MLP`; empty for a linear model.
    activation : {"relu", "tanh", "logistic", "identity"}
        Activation of the hidden layers.
    n_clusters : int or "auto"
        Number of clusters to look for; empty clusters are dropped. "auto" raises the number as
        long as the loss on held-out rows of the clients falls by more than its standard error and
        1 %, and compares with one model per client (see ``search_``). Give a number when it is
        known, or search it with ``GridSearchCV``.
    max_iter : "auto" or int
        Largest number of communication rounds; "auto" is 300 for linear models, 50 for networks.
        A ``ConvergenceWarning`` is issued when clients or models still moved at the end.
    tol : float
        The fit stops when no client changed its cluster and no cluster model moved by more than
        ``tol`` of its norm in a round. 0 runs all ``max_iter`` rounds.
    training : Training or None
        How clients train in a round and how the server weighs their messages; None is
        :class:`Training` with its defaults. Set its options as ``training__<name>``.
    batch_size : int or None
        Rows a client draws for a step. None uses all of them.
    participation : float
        Fraction of the clients that take part in a round, drawn anew each time, in (0, 1].
    record : Record or None
        What a study keeps of the fit; None is :class:`Record` with its defaults.
    n_init : "auto" or int
        Number of starts; the start with the least final loss is kept. "auto" is 3 with
        ``init="loss++"`` and 10 with ``init="random"`` for linear models, and 1 for networks.
    init : {"loss++", "random", "same"} or array of shape (n_clusters, n_params)
        Start of the cluster models. "loss++" draws them among the clients' models after a few
        local steps, far from each other in loss, as k-means++ does in distance. "random" draws
        parameters, as in the papers. "same" draws one model and deals the clients to the clusters
        in the first round. An array gives the models.
    shared_layers : int, str, list of str or None
        Layers that all clusters share: the first so many, or names of
        ``model_.layer_slices()``. Shared layers are averaged over all clients and sent once. A
        linear model is one layer.
    embedding : {"log", "sqrt", "raw", "centered"}
        Transform of the loss vectors that are clustered. "log" compares the ratios of a client's
        losses and tolerates diverged models and clients with large losses. "raw" is the paper's
        algorithm, "sqrt" its theory; "centered" subtracts each client's mean.
    clusterer : clusterer or None
        A scikit-learn clusterer in place of k-means, cloned in every round with its
        ``n_clusters`` (or ``n_components``) set to the number of models. Noise points take the
        model of least loss.
    aggregation : {"mean", "median", "trimmed_mean", "geometric_median", "krum", \
    "centered_clipping"} or object
        How the server combines the messages of a cluster's clients. The mean is right if all
        clients are honest; "geometric_median" is the first choice if some may be false, and costs
        little accuracy otherwise. An operator of :mod:`skcfl.rounds.aggregation` has parameters,
        such as ``TrimmedMean(trim=0.1)``; any object with a method
        ``aggregate(messages, weights)`` works. All but the mean set outlying clients aside, see
        ``suspicion_`` and the page on false clients.
    empty_cluster : {"reseed", "keep"}
        "reseed" restarts a cluster without clients from the clients that fit worst; "keep"
        leaves its model as it is, as in the paper.
    group_col : str, int or None
        Column of X that holds the client ids: a column name, or a position. The column is not a
        feature. Use it in tools that cannot pass ``groups`` to ``predict``, such as
        ``cross_val_predict`` and ``CalibratedClassifierCV``.
    unseen : {"error", "average", "largest"}
        Prediction for ids not seen in fit. "error" refuses them; "average" uses the mean model,
        weighted by rows (mean output of clusters' networks); "largest" that of the fit's largest
        cluster. With labelled rows of new clients use :meth:`adapt`.
    n_jobs : int or None
        Number of threads over blocks of clients and folds, as in scikit-learn. It does not change
        the result. BLAS has one thread in fits, as its threads cost more than small models gain.
    random_state : int, RandomState instance or None
        Seed of all random draws. An int makes the fit reproducible.
    verbose : int
        0 prints nothing, 1 one line per stage with the estimated time left, 2 also rounds or
        iterations.

    Attributes
    ----------
    groups_ : ndarray of shape (n_clients,)
        The client ids, sorted. ``[0]`` after a fit without ids.
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client, in the order of ``groups_``. Clusters are numbered from 0 by
        decreasing number of clients, equal ones by their first client. ``sample_labels``
        gives one label per row.
    n_clusters_ : int
        Number of clusters that have a client.
    cluster_sizes_ : ndarray of shape (n_clusters_,)
        Number of clients of each cluster.
    coef_ : ndarray of shape (n_clients, n_features) or (n_clients, n_classes, n_features)
        Coefficients of each client's model, in the order of ``groups_`` (linear models only).
    intercept_ : ndarray of shape (n_clients,) or (n_clients, n_classes)
        Intercept of each client's model (linear models only).
    alpha_ : float
        The local penalty of the fit, which ``alpha="auto"`` chooses.
    cluster_coef_ : ndarray of shape (n_clusters_, n_features) or (n_clusters_, n_classes, \
    n_features)
        Coefficients of each cluster's model (linear models only).
    cluster_intercept_ : ndarray of shape (n_clusters_,) or (n_clusters_, n_classes)
        Intercept of each cluster's model (linear models only).
    params_ : ndarray of shape (n_clients, n_params)
        Parameter vector of each client's model.
    cluster_params_ : ndarray of shape (n_clusters_, n_params)
        Parameter vector of each cluster's model.
    n_iter_ : int
        Number of rounds or iterations that were run.
    history_ : dict of str to ndarray
        One entry per round: such as "objective", "n_clusters", "floats_up" and "floats_down"
        (numbers sent to and by the server), "calls", "seconds", "bytes_up" and "bytes_down".
        Candidates of a search stand one behind the other, with more "calls" than ``calls_``.
    floats_up_ : int
        Numbers sent by the clients to the server in the fit, restarts and polishing included.
    floats_down_ : int
        Numbers sent by the server to the clients in the whole fit.
    missing_clients_ : ndarray of shape (n_missing,)
        Ids of the clients that did not answer at the end of the fit, never answered one kind of
        call (:class:`skcfl.federation.Faults`), or were away when needed in all attempts.
    absences_ : list of dict
        When a client did not answer: its id ("client"), requests ("from_call", "to_call", which
        ``calls_`` counts otherwise) and seconds from its silence to its answer, None if none.
    rejected_clients_ : ndarray of shape (n_rejected,)
        Ids of the clients that sent non-finite numbers; they take no part.
    calls_ : int
        Exchanges between server and clients in the whole fit; requests that do not wait for each
        other are one exchange.
    client_calls_ : int
        Clients that were asked, summed over the exchanges.
    wire_bytes_ : tuple of int
        Bytes ``(up, down)`` of all messages between processes in the fit; zero in one process.
    coef_names_ : ndarray of shape (n_features,)
        Names of the features of ``coef_``: those of X, or "x0", "x1", ...
    objective_ : float
        Value of the objective at the end, of networks in the units in which they train.
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted (classifiers only). The columns of ``predict_proba`` are in this
        order for every client, whatever classes it has.
    n_features_in_ : int
        Number of columns of X in fit, the group column included.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns of X in fit, if all are strings.
    model_ : LocalModel
        The local model, bound to the shape of the data.
    """


class Optional:
    """Texts of attributes that some methods have, which name them without a text.

    Attributes
    ----------
    suspicion_ : ndarray of shape (n_clients,)
        With an ``aggregation`` other than "mean": distance of each client's message or loss from
        its cluster, relative to the largest distance expected of an honest client. Values above
        1: excluded; infinity: no answer. See :class:`~skcfl.inspection.SuspicionDisplay`.
    """


def document(cls: _T) -> _T:
    """Complete the sections of parameters and attributes in the docstring of an estimator class.

    Parameters
    ----------
    cls : type
        A class with these sections, or the lines ``{parameters}`` and ``{attributes}``, in its
        docstring.

    Returns
    -------
    cls : type
        The same class.

    Raises
    ------
    TypeError
        If a parameter of ``__init__`` has no description.

    Examples
    --------
    >>> import inspect
    >>> from skcfl.base.docs import document
    >>> @document
    ... class Fit:
    ...     '''Fits.
    ...
    ...     {parameters}
    ...     '''
    ...
    ...     def __init__(self, *, verbose=0):
    ...         self.verbose = verbose
    >>> print(inspect.getdoc(Fit))
    Fits.
    <BLANKLINE>
    Parameters
    ----------
    verbose : int, default=0
        0 prints nothing, 1 one line per stage with the estimated time left, 2 also rounds or
        iterations.
    """
    if cls.__doc__ is None:  # python -OO has none
        return cls
    written = filled = inspect.cleandoc(cls.__doc__)
    for title, entries in (("Parameters", _parameters), ("Attributes", _attributes)):
        section = "\n".join([title, "-" * len(title), *entries(cls), "\n"])
        mark = rf"^{{{title.lower()}}}$\n?|" + SECTION.format(title)
        if found := re.search(mark, filled, re.M | re.S):
            filled = filled[: found.start()] + section + filled[found.end() :]
    cls._written = written  # type: ignore[attr-defined]
    cls.__doc__ = re.sub(r"\n{3,}", "\n\n", filled).rstrip() + "\n"
    return cls


#: A section of a docstring, up to the next one.
SECTION = r"^{0}\n-+\n(?P<entries>.*?)(?=^\S[^\n]*\n-+$|^\{{\w+\}}$|\Z)"


@cache
def _entries(cls: type, title: str) -> dict[str, str | None]:
    """Entries of a section that a class has written: type and text, None for none."""
    text = inspect.cleandoc(vars(cls).get("_written", cls.__doc__) or "")
    found = re.search(SECTION.format(title), text, re.M | re.S)
    entries: dict[str, str | None] = {}
    for entry in re.split(r"^(?=\S)", found["entries"].strip() if found else "", flags=re.M)[1:]:
        names, _, text = entry.rstrip().partition(" : ")
        if text == "None":
            entries.update(dict.fromkeys(names.split(", ")))
        else:
            kind, _, body = text.partition("\n")
            entries[names] = f"{' '.join(kind.split())}\n{body}" if text else OPTIONAL[names]
    return entries


OPTIONAL = _entries(Optional, "Attributes")


def _merged(cls: type, title: str) -> dict[str, str | None]:
    """Entries of a class and its bases; the nearest class has the last word."""
    table: dict[str, str | None] = {}
    for base in (Shared, *reversed(cls.__mro__)):
        if base.__module__.partition(".")[0] == __package__.partition(".")[0]:
            table.update(_entries(base, title))
    return table


def _parameters(cls: Any) -> Iterator[str]:
    table = _merged(cls, "Parameters")
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        text = table.get(name)
        if text is None:
            raise TypeError(
                f"Parameter {name!r} of {cls.__name__} has no description. Add it to the "
                "docstring of the class, or of skcfl.base.docs.Shared."
            )
        kind, _, body = text.partition("\n")
        default = parameter.default
        if default is not parameter.empty:
            kind += f", default={_spell(default)}"
        yield f"{name} : {kind}\n{body}{_used(cls, name)}"


def _spell(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else f"{default!r}"


def _used(cls: Any, name: str) -> str:
    """Which options of an object a class uses, if not all."""
    used = getattr(cls, "_option_names", {}).get(name)
    if used is None:
        return ""
    text = f"Of its options {', '.join(f'`{one}`' for one in used)} are used."
    return "\n" + textwrap.indent(textwrap.fill(text, 90), " " * 4)


def _attributes(cls: type) -> list[str]:
    table = _merged(cls, "Attributes").items()
    return [f"{name} : {text}" for name, text in table if text is not None]
