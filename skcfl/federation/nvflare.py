"""Fits to sites of their own over NVIDIA FLARE (the extra ``nvflare``).

A site loads its own rows, and answers the calls of :mod:`skcfl.calls` about them; a
job at the server fits an estimator to the sites and leaves it as a file.  The same job runs in
NVFlare's simulator, in its proof of concept on one machine, and in production.  It brings no code.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

from .._checks import needs, whole_number
from ..exceptions import FederationError, MessageError
from .collab import ALLOWED_ROWS, FITTED, REPORT, FitApp, SiteApp, encoded
from .federation import checked
from .remote import TIMEOUT
from .serialization import RESULTS, loads

__all__ = ["allow_jobs", "fit_recipe", "load_fitted"]

# Largest number of lines quoted from NVFlare's log, if a job did not begin.
MOST_REASONS = 8
# Characters of such a line that are quoted.
MOST_LETTERS = 300
#: What NVFlare makes of a job at its server and at its sites.
CLASSES = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "skcfl.federation.collab.FitApp",
    "skcfl.federation.collab.SiteApp",
)


def fit_recipe(
    estimator: Any,
    rows: str,
    *,
    name: str = "skcfl",
    min_clients: int = 1,
    min_sites: int = 1,
    retries: int = 1,
    timeout: float = TIMEOUT,
    trusted: Collection[str] = (),
    max_share: float | None = None,
    checkpoint: str | PathLike[str] | None = None,
    released: int = 0,
    evidence: bool = False,
) -> Any:
    """The job that fits an estimator to sites.

    Parameters
    ----------
    estimator : estimator
        Any estimator of skcfl, not fitted.
    rows : str
        The sites' subclass of :class:`~skcfl.federation.SiteRows`, "module:Class". Every site has
        the module itself and allows the class, see :func:`allow_jobs`: a job brings no code.
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
    max_share : float or None, default=None
        Largest share of the total weight that a client may have: the rows of a client with more
        count less. None is no limit.
    checkpoint : path-like, default=None
        File at the server, outside the job's folder, with its whole path. If the server is killed
        and the same job is submitted again, the fit goes on from there, see :ref:`checkpoints`.
    released : int, default=0
        Folds of the second moments that sites release by policies with the unit "record", to
        which the estimator is fitted, see
        :meth:`~skcfl.federation.InProcessFederation.released`. 0 fits it to the sites.
    evidence : bool, default=False
        Whether sites are asked at the end for the sums that the estimator's ``report`` needs, see
        ``fit_federation``.

    Returns
    -------
    recipe : nvflare.collab.CollabRecipe
        ``recipe.run(env)`` takes a ``SimEnv`` or ``ProdEnv`` of ``nvflare.recipe``;
        ``recipe.export(folder)`` writes the job.  Server and sites allow its classes once, see
        :func:`allow_jobs`.  With a ``SimEnv``, ``run`` itself raises what :func:`load_fitted`
        raises if the fit failed.

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
    if evidence and "evidence" not in signature(estimator.fit_federation).parameters:
        name = type(estimator).__name__
        raise ValueError(f"evidence must be False for {name}: its report needs none. Got True.")
    *_, max_share = checked(min_clients, retries, max_share)
    min_sites = whole_number(min_sites, "min_sites")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")
    released = whole_number(released, "released", 0)
    trusted = [trusted] if isinstance(trusted, str) else list(trusted)
    try:
        text = encoded(estimator, trusted)
    except MessageError as error:
        raise ValueError(f"estimator cannot be sent: {error}") from error
    if not _names_class(rows):
        raise ValueError(
            f"rows must be 'module:Class', which every site has, got {rows!r}: jobs bring no code."
        )
    if checkpoint is not None and not Path(checkpoint).is_absolute():
        raise ValueError(
            f"checkpoint must be the whole path of a file at the server, got {str(checkpoint)!r}."
        )
    path = None if checkpoint is None else str(checkpoint)
    about = text, min_clients, retries, float(timeout), trusted, repr(estimator), max_share, path
    about += (released, bool(evidence))
    recipe = recipe_class(name, server=FitApp(*about), client=SiteApp(rows), min_clients=min_sites)
    # Otherwise the source files of the classes would be copied into the job.
    recipe.finalize().set_app_packages(["skcfl"])
    return recipe


def allow_jobs(kit: str | PathLike[str], rows: str | Collection[str] | None = None) -> None:
    """Let jobs of ``fit_recipe`` make their classes at a server or a site of NVFlare.

    NVFlare makes of a job that brings no code only the classes in the ``class_allow_list`` of
    ``local/resources.json``. This adds those of skcfl to the list, once for all jobs, and writes
    which rows of a site jobs may name. It also writes
    ``"allow_log_streaming": false``: errors in a site's log may quote rows, and NVFlare uploads it
    otherwise. A site that runs has to be started again for that.

    Parameters
    ----------
    kit : path-like
        Startup kit of the server or site: the folder that has ``startup`` and ``local``.
    rows : str or collection of str, default=None
        The site's subclasses of :class:`~skcfl.federation.SiteRows` that jobs may name, each
        "module:Class". Jobs that name anything else are refused, and nothing is imported for
        them. They replace those of an earlier call; None leaves these, and a server needs none.

    Examples
    --------
    At a site, ``allow_jobs("/path/to/kit", rows="clinic:Clinic")``.
    """
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    names = [rows] if isinstance(rows, str) or not isinstance(rows, Collection) else list(rows)
    if rows is not None and not all(map(_names_class, names)):
        raise ValueError(f"rows must be 'module:Class', or several of them, got {rows!r}.")
    local = Path(kit) / "local"
    local.mkdir(parents=True, exist_ok=True)
    own, default = local / "resources.json", local / "resources.json.default"
    resources: dict[str, Any] = {"format_version": 2}
    for file in filter(Path.exists, (default, own)):
        resources = json.loads(file.read_text(encoding="utf-8"))
    allowed = resources.setdefault("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    allowed += [name for name in CLASSES if name not in allowed]
    # Otherwise NVFlare uploads error_log.txt of a site, in which errors quote rows.
    resources["allow_log_streaming"] = False
    if rows is not None:
        resources[ALLOWED_ROWS] = names
    own.write_text(json.dumps(resources, indent=2), encoding="utf-8")


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
    if reports:
        report = json.loads(reports[-1].read_text(encoding="utf-8"))
        reasons = "".join(f"\nNo answer of {reason}" for reason in report["failures"])
        raise FederationError(f"The job failed: {report['error']}{reasons}")
    known = _known_reasons(Path(folder))
    if known:
        raise FederationError("The job ended before the fit began:\n" + "\n".join(known))
    raise FileNotFoundError(f"There is no {FITTED} below {folder}.")


def _known_reasons(folder):
    """What NVFlare has written down about a job whose fit did not begin, lines of text."""
    found = []
    for file in folder.glob("meta.json"):
        meta = json.loads(file.read_text(encoding="utf-8"))
        found.append(f"status {meta.get('status')}")
        deployed = meta.get("job_deploy_detail") or []
        found += [entry for entry in deployed if not entry.endswith(": OK")]
        found += [entry for entry in meta.get("schedule_history", []) if "scheduled" not in entry]
    for file in sorted(folder.rglob("error_log.txt")):
        # Not the frames of tracebacks, which are indented, and what introduces them.
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [
            line
            for line in lines
            if line[:1].strip() and not line.endswith((" call last):", " exception occurred:"))
        ]
    found = list(dict.fromkeys(line[:MOST_LETTERS] for line in found))[:MOST_REASONS]
    if found:
        found.append(
            "If this names no reason, log.txt of the job at each site does. If a class is not in "
            "allow_list: see skcfl.federation.nvflare.allow_jobs. If clients failed to sync: stop "
            "their sites and start them again."
        )
    return found


def _names_class(text):
    """Whether this is "module:Class"."""
    return isinstance(text, str) and len([part for part in text.split(":") if part]) == 2


def _need_nvflare():
    with needs("This needs NVFlare 2.9 or newer: python -m pip install 'skcfl[nvflare]'"):
        from nvflare.collab import CollabRecipe
        from nvflare.recipe import SimEnv

    class FitRecipe(CollabRecipe):
        """A job without code: server and sites have the classes that it names."""

        @staticmethod
        def _user_source_entries(objs):
            return []

        def process_env(self, env):
            super().process_env(env)
            if isinstance(env, SimEnv):
                allow_jobs(Path(env.workspace_root) / self.job_name, rows=self.client.rows)

        def run(self, env, *arguments, **options):
            try:
                return super().run(env, *arguments, **options)
            except RuntimeError:
                # The simulator's error says where its logs are, and not why the fit failed.
                if isinstance(env, SimEnv):
                    with suppress(FileNotFoundError):
                        load_fitted(Path(env.workspace_root) / self.job_name, self.server.trusted)
                raise

    return FitRecipe
