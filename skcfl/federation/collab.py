"""What NVFlare makes at the server and at the sites of a job, by its Collab API.

A job is a configuration of class names and arguments, so the two classes are here; what users call
is in :mod:`skcfl.federation.nvflare`.
"""

import base64
import importlib
import json
import logging
import time
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator

from ..exceptions import FederationError
from .fit_page import FitReport, fit_report
from .host import SiteHost, SiteRows
from .remote import RemoteFederation
from .serialization import RESULTS, dumps, loads
from .sites import PlaceLost, Refused
from .wire import WireTransport

#: File of the fitted estimator, in the job's folder at the server.
FITTED = "skcfl_fitted.bin"
#: Files of what was fitted, asked and answered, in the same folder.
REPORT, PAGE = "skcfl_report.json", "skcfl_report.html"
#: Entry of the file of resources of a kit: the classes of rows that jobs may name.
ALLOWED_ROWS = "skcfl_rows"

logger = logging.getLogger(__name__)


def encoded(estimator, trusted=()):
    """An estimator as text for the configuration of a job, checked to be readable there."""
    data = dumps(estimator, (*RESULTS, *trusted))
    text = base64.b64encode(data).decode("ascii")
    # In groups: NVFlare takes long ones for passwords, and warns.
    return " ".join(text[k : k + 16] for k in range(0, len(text), 16))


class FitApp:
    """The server's part of a job: fits an estimator, and leaves it as a file.

    Parameters
    ----------
    estimator : str
        Of :func:`encoded`.
    min_clients, retries : int
        As of :class:`~skcfl.federation.Federation`.
    timeout : float
        Seconds to wait for an answer of a site.
    trusted : list of str
        Modules of which the estimator may hold classes, besides skcfl and scikit-learn.
    description : str
        The estimator as people read it who look at a job before they take part.
    max_share : float or None
        As of :class:`~skcfl.federation.remote.RemoteFederation`.
    checkpoint : str or None
        File at the server that the fit writes, and goes on from if it is there.
    released : int
        Folds of the second moments that sites release, to which the estimator is fitted; 0 fits
        it to the sites.
    evidence : bool, default=False
        Whether sites are asked for what a report needs.
    """

    def __init__(
        self,
        estimator,
        min_clients,
        retries,
        timeout,
        trusted,
        description,
        max_share=None,
        checkpoint=None,
        released=0,
        evidence=False,
    ):
        self.estimator, self.trusted, self.description = estimator, trusted, description
        self.max_share, self.checkpoint, self.released = max_share, checkpoint, released
        self.min_clients, self.retries, self.timeout = min_clients, retries, timeout
        self.evidence = evidence
        _publish(type(self), fit="main")

    def fit(self):
        """Fit to the sites of the job."""
        from nvflare.collab import collab

        folder = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        ways = [
            SiteTransport(client.name, self.timeout, collab.context) for client in collab.clients
        ]
        logger.info("fitting to %s", [way.name for way in ways])
        fitted = run(self, ways, folder)
        track(getattr(fitted, "history_", {}), collab.fl_ctx)


def run(app, transports, folder):
    """Fit the estimator of a job to sites, and write what comes of it into its folder.

    Parameters
    ----------
    app : FitApp
        The job.
    transports : list of WireTransport
        The ways to the sites.
    folder : Path
        Where to write.

    Returns
    -------
    fitted : estimator

    Raises
    ------
    Exception
        What the fit raises; the report has it too, with the reasons why sites did not answer.
    """
    for name in (FITTED, REPORT, PAGE):
        (folder / name).unlink(missing_ok=True)
    report, fitted = {"sites": [way.name for way in transports]}, None
    started = time.perf_counter()
    try:
        packages = (*RESULTS, *app.trusted)
        estimator = loads(base64.b64decode(app.estimator), packages=packages)
        limits = {name: getattr(app, name) for name in ("min_clients", "retries", "max_share")}
        federation = RemoteFederation(transports, **limits)
        options = {"evidence": True} if app.evidence else {}
        if app.checkpoint is not None:
            options |= {"checkpoint": app.checkpoint, "resume": True}
        if app.released:
            federation = federation.released(n_folds=app.released)
        fitted = estimator.fit_federation(federation, **options)
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
        raise
    else:
        (folder / FITTED).write_bytes(dumps(fitted, packages))
    finally:
        report["failures"] = [reason for way in transports for reason in way.failures]
        report["messages"] = sum(way.messages for way in transports)
        report["seconds"] = time.perf_counter() - started
        written = FitReport({"estimator": app.description, **report})
        if isinstance(fitted, BaseEstimator):
            written = fit_report(fitted, **report)
        (folder / REPORT).write_text(written.to_json(), encoding="utf-8")
        (folder / PAGE).write_text(written.to_html(), encoding="utf-8")
    return fitted


def track(history, context):
    """Hand the history of a fit to the writers of NVFlare that the job has, such as TensorBoard's.

    Parameters
    ----------
    history : dict of str to ndarray
        A number for each round, by name.
    context : nvflare.apis.fl_context.FLContext
        Of the job at the server.
    """
    from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
    from nvflare.apis.fl_component import FLComponent
    from nvflare.app_common.widgets.streaming import create_analytic_dxo, send_analytic_dxo

    sender = FLComponent()
    for name, column in history.items():
        numbers = np.asarray(column)
        if numbers.ndim != 1 or numbers.dtype.kind not in "biuf":
            continue
        for step, value in enumerate(numbers.astype(float).tolist()):
            if np.isfinite(value):
                about = {"data_type": AnalyticsDataType.SCALAR, "global_step": step}
                number = create_analytic_dxo(tag=f"skcfl/{name}", value=value, **about)
                send_analytic_dxo(sender, number, context, event_type=ANALYTIC_EVENT_TYPE)


class SiteApp:
    """A site's part of a job: answers about rows that it loads.

    Parameters
    ----------
    rows : str
        Where the site finds its subclass of :class:`~skcfl.federation.SiteRows`,
        "module:Class".
    """

    def __init__(self, rows):
        self.rows, self._host = rows, None
        _publish(type(self), exchange="publish")

    def exchange(self, message):
        """Answer a message of the server."""
        if self._host is None:
            from nvflare.collab import collab

            self._host = site_host(self.rows, collab)
        return self._host.handle(message)


def site_host(path, collab):
    """Make the host of the rows that a job names, if the site allows them.

    Parameters
    ----------
    path : str
        The job's name for a class, "module:Class".
    collab : nvflare.collab.collab
        What NVFlare says about the job and the site.

    Returns
    -------
    host : SiteHost
        The host, with an object of this class.

    Raises
    ------
    Refused
        If the class is not in the list of the site's kit; nothing of it has been imported.
    PlaceLost
        If the class is missing, or cannot be made: the log of the site has the error.
    """
    site, file = collab.site_name, collab.workspace.get_resources_file_path()
    resources = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    allowed = list(resources.get(ALLOWED_ROWS, ()))
    if path not in allowed:
        raise Refused(
            f"site {site!r} lets jobs name the rows {allowed}, got {path!r}: the site decides, by "
            "skcfl.federation.nvflare.allow_jobs(kit, rows=...)"
        )
    try:
        return SiteHost(found_rows(path)(site), collab.fl_ctx.get_job_id())
    except PlaceLost:  # the text is that of skcfl
        raise
    except Exception as error:
        # NVFlare sends the whole text to the server, and it may quote a row.
        logger.error("The rows %r could not be made", path, exc_info=error)
        kind = type(error).__name__
        text = f"the site's rows {path!r} could not be made: {kind}, see its log"
        raise PlaceLost(text) from None


def found_rows(path):
    """The class at "module:Class".

    Parameters
    ----------
    path : str
        Its place.

    Returns
    -------
    cls : type
        A subclass of SiteRows.

    Raises
    ------
    PlaceLost
        If there is no such module, or no such class in it.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the site's own one imports
        raise PlaceLost(f"the site has no module {module!r}") from None
    if not hasattr(found, name):
        raise PlaceLost(f"the site's module {module!r} has no class {name!r}")
    cls = getattr(found, name)
    if not (isinstance(cls, type) and issubclass(cls, SiteRows)):
        kind = type(cls).__name__
        raise TypeError(f"{path} must be a subclass of skcfl.federation.SiteRows, got a {kind}.")
    return cls


class SiteTransport(WireTransport):
    """The way to one site of a job, from its server.

    Parameters
    ----------
    name : str
        The site.
    timeout : float
        Seconds to wait for an answer.
    context : nvflare.collab.api.Context
        Of the job's main function, in which threads of its own ask, too.
    """

    def __init__(self, name, timeout, context):
        super().__init__(name)
        self.timeout, self.context = timeout, context

    def send(self, message):
        """Send a message, and do not wait; see :meth:`WireTransport.send`."""
        from nvflare.collab import collab
        from nvflare.collab.api.context import get_call_context, set_call_context

        if get_call_context() is None:
            # A thread of the fit: NVFlare knows the job by the thread.
            set_call_context(self.context)
        if collab.is_aborted:
            raise FederationError("NVFlare has aborted the job, see the log of the server")
        site = collab.get_clients([self.name])
        results = site(blocking=False, timeout=self.timeout).exchange(message)

        def wait():
            for _, reply in results:
                return reply
            if collab.is_aborted:
                raise FederationError("NVFlare has aborted the job, see the log of the server")
            cause = results.failures[self.name].cause
            if isinstance(cause, Exception):
                raise cause
            # What was raised at the site comes as text.
            raise PlaceLost(str(cause))

        return wait


def _publish(cls, **roles):
    """Mark methods for NVFlare, which is imported only where a job runs."""
    from nvflare.collab import collab

    for name, role in roles.items():
        method = getattr(cls, name)
        if not hasattr(method, "__wrapped__"):
            marked = getattr(collab, role)(method)
            marked.__wrapped__, marked.__doc__ = method, method.__doc__
            setattr(cls, name, marked)
