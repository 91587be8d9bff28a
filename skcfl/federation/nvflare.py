"""Fits to sites of their own over NVIDIA FLARE (the extra ``nvflare``).

A site loads its own rows, and answers the calls of :mod:`skcfl.federation.messages` about them; a
job at the server fits an estimator to the sites and leaves it as a file.  The same job runs in
NVFlare's simulator, in its proof of concept on one machine, and in production.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any

from .._checks import Count
from ..exceptions import FederationError, MessageError
from .collab import FITTED, REPORT, FitApp, SiteApp, check_rows, encoded
from .federation import _check_counts
from .serialization import RESULTS, loads

__all__ = ["fit_recipe", "load_fitted"]


def fit_recipe(
    estimator: Any,
    rows: str | type,
    *,
    name: str = "skcfl",
    min_clients: int = 1,
    min_sites: int = 1,
    retries: int = 1,
    timeout: float = 60.0,
    trusted: Collection[str] = (),
) -> Any:
    """The job that fits an estimator to sites.

    Parameters
    ----------
    estimator : estimator
        Any estimator of skcfl, not fitted.
    rows : str or type
        The sites' subclass of :class:`~skcfl.federation.SiteRows`: "module:Class", which every
        site has itself, so that what is loaded and what is agreed to are the site's; or the class,
        whose file then travels with the job.
    name : str, default="skcfl"
        Name of the job.
    min_clients : int, default=1
        How many clients have to answer when they are asked.
    min_sites : int, default=1
        How many sites the job needs to start.
    retries : int, default=1
        How often silent clients are asked again where all are needed.
    timeout : float, default=60.0
        Seconds to wait for an answer of a site, after which its clients are silent.
    trusted : collection of str, default=()
        Modules of which the estimator holds objects, besides skcfl and scikit-learn.

    Returns
    -------
    recipe : nvflare.collab.CollabRecipe
        ``recipe.run(env)`` takes a ``SimEnv``, ``PocEnv`` or ``ProdEnv`` of ``nvflare.recipe``;
        ``recipe.export(folder)`` writes the job.

    Raises
    ------
    ImportError
        If NVFlare is not installed.
    ValueError
        If a number is out of range, or the estimator holds objects of modules that are not
        trusted.

    Examples
    --------
    ``clinic.py`` of each site::

        class Clinic(skcfl.federation.SiteRows):
            policy = skcfl.federation.SitePolicy(min_rows=20)

            def load(self):
                frame = pandas.read_csv("/data/visits.csv")
                return frame.drop(columns=["y", "ward"]), frame["y"], frame["ward"]

    and the job::

        recipe = fit_recipe(skcfl.IFCAClassifier(n_clusters=2), "clinic:Clinic")
        run = recipe.run(SimEnv(clients=["north", "south"]))
        model = load_fitted(run.get_result())
    """
    recipe_class = _need_nvflare()
    if isinstance(estimator, type) or not hasattr(estimator, "fit_federation"):
        got = "a class" if isinstance(estimator, type) else type(estimator).__name__
        raise TypeError(f"estimator must be one of skcfl, with fit_federation(), got {got}.")
    _check_counts(min_clients, retries)
    if not Count(1).is_satisfied_by(min_sites):
        raise ValueError(f"min_sites must be an integer of at least 1, got {min_sites!r}.")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")
    trusted = [trusted] if isinstance(trusted, str) else list(trusted)
    try:
        text = encoded(estimator, trusted)
    except MessageError as error:
        raise ValueError(f"estimator cannot be sent: {error}") from error
    path, file = rows, None
    if isinstance(rows, type):
        check_rows(rows, "rows")
        file = inspect.getfile(rows)
        module = Path(file).stem if rows.__module__ == "__main__" else rows.__module__
        path = f"{module}:{rows.__qualname__}"
    if not isinstance(path, str) or len([part for part in path.split(":") if part]) != 2:
        raise ValueError(f"rows must be 'module:Class' or a class, got {rows!r}.")
    recipe = recipe_class(
        name,
        server=FitApp(text, min_clients, retries, float(timeout), trusted, repr(estimator)),
        client=SiteApp(path),
        min_clients=min_sites,
    )
    if file is not None:
        recipe.add_client_file(file)
    # Server and sites have skcfl; parts of it beside the job would come before theirs.
    recipe.finalize().set_app_packages(["skcfl"])
    return recipe


def load_fitted(folder: str | PathLike[str], trusted: Collection[str] = ()) -> Any:
    """The estimator that a job has fitted.

    Parameters
    ----------
    folder : path-like
        Where the job's results are, such as ``run.get_result()`` gives: the file is looked for
        below it.  It is data, and reading it runs no code of the server that wrote it.
    trusted : collection of str, default=()
        Modules of which the estimator holds objects, besides skcfl and scikit-learn.

    Returns
    -------
    estimator : estimator
        Fitted; it holds models and clusters of the clients, and none of their rows.

    Raises
    ------
    FederationError
        If the fit failed; the message says why.
    MessageError
        If the file is malformed, or holds objects of modules that are not trusted.
    FileNotFoundError
        If there is nothing of a fit.
    """
    if folder is None:
        raise FileNotFoundError("The job has left no result: its server's log says why.")
    found = sorted(Path(folder).rglob(FITTED))
    if found:
        own = [trusted] if isinstance(trusted, str) else trusted
        data = found[-1].read_bytes()
        return loads(data, own, RESULTS, max_bytes=len(data), same_version=False)
    reports = sorted(Path(folder).rglob(REPORT))
    if not reports:
        raise FileNotFoundError(f"There is no {FITTED} below {folder}.")
    report = json.loads(reports[-1].read_text(encoding="utf-8"))
    reasons = "".join(f"\nNo answer of {reason}" for reason in report["failures"])
    raise FederationError(f"The job failed: {report['error']}{reasons}")


def _need_nvflare():
    try:
        from nvflare.collab import CollabRecipe
    except ImportError as error:
        raise ImportError(
            "This needs NVFlare 2.9 or newer: python -m pip install 'skcfl[nvflare]'"
        ) from error
    return CollabRecipe
