"""Releases: sums over clients that are clipped and made noisy at the clients' side.

A release is the only thing that clients under client-level privacy answer.  It is no call of
``CALLS``: no site answers it without noise.  Every client computes some arrays, the *blocks*.  A
block is scaled down to a bound of its norm and summed, and Gaussian noise is added.
The noise of a block has the standard deviation ``multiplier * clip / sqrt(share)``; the shares of
the blocks of a release sum to one, so that the release is one Gaussian mechanism of that
multiplier (:mod:`skcfl.numerics.gaussian_mechanism`).

Each client has a block of its own, without padding.  Rounding and the branches of algorithms
depend on all rows of a block, and a server can ask where that matters.

The bounds and shares are those of this file.  A server chooses the models that a release is about,
and can choose neither a bound nor a share.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from math import floor, log2
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ..clients.training import TrainingTerms, train
from .call import without_instances
from .posteriors_asked import _posteriors_of

logger = logging.getLogger(__name__)

#: Every release by its name, which is that of its class in lower case.
RELEASES: dict[str, type[Release]] = {}
#: Share of the budget of a release that counts the clients that were scaled down.
CLIPPED_SHARE = 0.02
#: Sums are rounded to about this part of their noise: the last bits of floats would show more than
#: the noise hides (Mironov 2012).
GRID = 2.0**-10
#: Bound of a sum in fixed point, in bounds of a block: for four thousand million clients.
ROOM = 2.0**32
# Part of a bound that is left to the rounding of norms.
SLACK = 1e-12
# Bound of a client's scatter, which is about 1, and 4 is rare; and its least degrees of freedom.
SCATTER_CLIP, LEAST_DF = 4.0, 0.1
# Most models in a release.
MOST_MODELS = 1000
# Most local steps that a server may ask for.
MOST_STEPS = 10**5


class Block(NamedTuple):
    """An array of bounded norm that every client adds to a sum.

    Attributes
    ----------
    shape : tuple of int
        Its shape.
    clip : float
        Bound of its norm.
    share : float
        Share of the privacy budget of the release, relative to those of the other blocks.
    """

    shape: tuple[int, ...]
    clip: float
    share: float


class Release:
    """Base of the releases, classes without instances: their functions are class methods.

    Attributes
    ----------
    down : dict of str to tuple of str
        Shape of each argument: ``K`` is the number of models, ``p`` that of parameters; no word
        is a number, None a setting that :meth:`check_settings` looks at.
    """

    name: ClassVar[str] = ""
    down: ClassVar[dict[str, tuple[str, ...] | None]] = {}

    def __init_subclass__(cls) -> None:
        cls.name = without_instances(cls)
        RELEASES[cls.name] = cls

    # ------------------------------------------------------------------- what a subclass has

    @classmethod
    def bounded(cls, model: Any, arguments: dict[str, Any]) -> dict[str, Block]:
        """The blocks by name, without that of the clients that are scaled down."""
        raise NotImplementedError

    @staticmethod
    def kernel(site: Any, block: Any, slots: Any, **arguments: Any) -> dict[str, Any]:
        """Arrays (c, ...) of the clients of a block of rows, by name."""
        raise NotImplementedError

    @classmethod
    def check_settings(cls, model: Any, arguments: dict[str, Any]) -> None:
        """Raise a ValueError if a setting is none."""

    @classmethod
    def of_enough(cls, arguments: dict[str, Any], least: int, counted: bool) -> dict[str, Any]:
        """Arguments with which exact sums are of so many clients at least, or a ValueError.

        Numbers of clients in them are believed if they were `counted` by the same places.
        """
        return arguments

    @staticmethod
    def _of_counted(arguments: dict[str, Any], least: int, counted: bool) -> dict[str, Any]:
        """Arguments with a mask of the models of enough clients in the place of their sizes."""
        sizes = arguments["sizes"] if counted else None
        there = np.zeros(len(arguments["theta"])) if sizes is None else sizes
        return {**arguments, "sizes": there >= least}

    # ------------------------------------------------------------------------- both sides

    @classmethod
    def check(cls, model: Any, arguments: dict[str, Any]) -> None:
        """Raise a ValueError if arguments are not what the class lists."""
        if arguments.keys() != cls.down.keys():
            raise ValueError(f"{cls.name} takes {list(cls.down)}, got {list(arguments)!r:.80}.")
        theta = arguments["theta"]
        K = len(theta) if isinstance(theta, np.ndarray) and theta.ndim == 2 else 0
        sizes = {"K": K, "p": model.n_params}
        for name, words in cls.down.items():
            value = arguments[name]
            if words is None:
                continue
            shape = tuple(sizes[word] for word in words)
            array = np.asarray(value) if isinstance(value, np.ndarray | float | int) else None
            if array is None or array.shape != shape or array.dtype.kind not in "iuf":
                raise ValueError(f"{cls.name} takes {name} of shape {shape}.")
            if not np.isfinite(array).all():
                raise ValueError(f"{cls.name} takes a finite {name}.")
        if not 1 <= K <= MOST_MODELS:
            raise ValueError(f"{cls.name} takes 1 to {MOST_MODELS} models, got {K}.")
        if (sizes := arguments.get("sizes")) is not None and np.shape(sizes) != (K,):
            raise ValueError(f"{cls.name} takes a size of each model, or none.")
        cls.check_settings(model, arguments)

    @classmethod
    def blocks(cls, model: Any, arguments: dict[str, Any]) -> dict[str, Block]:
        """All blocks by name, their shares of sum one; the last one counts scaled clients."""
        found = cls.bounded(model, arguments)
        total = sum(block.share for block in found.values()) / (1.0 - CLIPPED_SHARE)
        found = {name: b._replace(share=b.share / total) for name, b in found.items()}
        clip = float(np.sqrt(len(found)))
        return {**found, "clipped": Block((len(found),), clip, CLIPPED_SHARE)}

    @classmethod
    def room(cls, blocks: dict[str, Block]) -> list[float]:
        """Bounds of the noisy sums, for numbers in fixed point."""
        return [block.clip * ROOM for block in blocks.values()]

    @classmethod
    def noise(cls, blocks: dict[str, Block], multiplier: float) -> dict[str, float]:
        """Standard deviation of the noise of each block."""
        return {name: multiplier * b.clip / np.sqrt(b.share) for name, b in blocks.items()}

    # ------------------------------------------------------------------------ the clients

    @classmethod
    def sums(
        cls,
        site: Any,
        arguments: dict[str, Any],
        clipped: bool = True,
        drawn: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Sums over the clients of a site of their blocks, without noise; None draws all."""
        blocks = cls.blocks(site.model, arguments)
        if not clipped:
            blocks = {name: block._replace(clip=np.inf) for name, block in blocks.items()}
        parts: dict[int, dict[str, np.ndarray]] = {}

        def work(block: Any, slots: Any) -> None:
            some = np.arange(len(slots)) if drawn is None else np.flatnonzero(drawn[slots])
            if not len(some):
                return
            if clipped:
                each = block.by_client(some)
            else:  # with the caches of the exchanges before
                each = [block if drawn is None else block.take(some)]
            arrays = cls._arrays(site, each, slots[some], arguments, blocks)
            parts[int(slots[0])] = clipped_sums(arrays, blocks)

        site.each(work)
        # The order of the clients, whatever thread was first.
        ordered = [parts[key] for key in sorted(parts)]
        return {
            name: sum((part[name] for part in ordered), np.zeros(b.shape))
            for name, b in blocks.items()
        }

    @classmethod
    def _arrays(
        cls, site: Any, each: list[Any], slots: Any, arguments: Any, blocks: dict[str, Block]
    ) -> dict[str, np.ndarray]:
        """Arrays of the clients of some blocks, which `slots` has in this order.

        NaN for a client that raises, since an error would be an answer, too.
        """
        ends = np.cumsum([len(block.lengths) for block in each])
        made = []
        for block, some in zip(each, np.split(slots, ends[:-1]), strict=True):
            try:
                made.append(cls.kernel(site, block, some, **arguments))
            except Exception as error:
                if len(some) > 1:
                    single = block.by_client(range(len(some)))
                    made.append(cls._arrays(site, single, some, arguments, blocks))
                    continue
                logger.error("%s of a client failed", cls.name, exc_info=error)
                shapes = {name: b.shape for name, b in blocks.items() if name != "clipped"}
                made.append({name: np.full((1, *s), np.nan) for name, s in shapes.items()})
        return {name: np.concatenate([arrays[name] for arrays in made]) for name in made[0]}

    @classmethod
    def answer(
        cls,
        site: Any,
        arguments: dict[str, Any],
        multiplier: float,
        rng: Any,
        drawn: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Noisy sums over the clients of a site.

        Parameters
        ----------
        site : InProcessSite
            The clients.
        arguments : dict
            What the server has sent, checked.
        multiplier : float
            The multiplier of the noise; 0 is no noise, and no bounds.
        rng : Generator or SecretNumbers
            Source of the noise, which the server must not know.
        drawn : ndarray of shape (n_clients,) of bool, default=None
            Clients of the sums; None is all.

        Returns
        -------
        sums : dict of str to ndarray
            One array for each of :meth:`blocks`.
        """
        if multiplier == 0.0:
            return cls.sums(site, arguments, clipped=False)
        noise = cls.noise(cls.blocks(site.model, arguments), multiplier)
        return {
            name: noisy(total, noise[name], rng)
            for name, total in cls.sums(site, arguments, True, drawn).items()
        }


def noisy(total: np.ndarray, sd: float, rng: Any) -> np.ndarray:
    """A sum with Gaussian noise."""
    return rounded(total + sd * rng.standard_normal(total.shape), sd)


def rounded(values: np.ndarray, sd: float) -> np.ndarray:
    """Numbers with noise, on a grid that hides the last bits of their floats."""
    grid = 2.0 ** floor(log2(sd * GRID))
    return np.round(values / grid) * grid


def clipped_sums(arrays: dict[str, np.ndarray], blocks: dict[str, Block]) -> dict[str, np.ndarray]:
    """Sums over clients of arrays that are scaled down to their bounds.

    A client with an array that is not finite adds nothing to any sum.

    Parameters
    ----------
    arrays : dict of str to ndarray
        Arrays (c, ...) of c clients.
    blocks : dict of str to Block
        Their bounds, and "clipped".

    Returns
    -------
    sums : dict of str to ndarray
        "clipped" counts the clients that were scaled down, for each array.
    """
    some = len(next(iter(arrays.values())))
    finite = np.ones(some, dtype=bool)
    flat = {}
    for name, value in arrays.items():
        flat[name] = np.asarray(value, dtype=float).reshape(some, -1)
        finite &= np.isfinite(flat[name]).all(axis=1)
    sums, counts = {}, []
    for name, value in flat.items():
        value = np.where(finite[:, None], value, 0.0)
        # The largest entry is taken out: squares of large entries would overflow.
        size = np.abs(value).max(axis=1, initial=0.0)
        unit = np.where(size > 0.0, size, 1.0)
        rows = value / unit[:, None]
        norm, clip = np.linalg.norm(rows, axis=1), blocks[name].clip
        with np.errstate(over="ignore"):  # of tiny entries
            large = norm > clip / unit
        scale = np.where(large, clip * (1.0 - SLACK) / np.where(large, norm, 1.0), unit)
        sums[name] = (scale[:, None] * rows).sum(axis=0).reshape(blocks[name].shape)
        counts.append(np.count_nonzero(large))
    return {**sums, "clipped": np.array(counts, dtype=float)}


# ------------------------------------------------------------------------------- posteriors


def _of_pieces(arrays, site, block, slots, theta, root, weights, dispersion):
    """Arrays of the clients of a block, by name, made of their posteriors piece by piece."""
    about = theta, root, weights, float(dispersion), np.inf
    parts = [arrays(*found) for found in _posteriors_of(site, block, slots, *about, True)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _upper(p):
    """Rows and columns of an upper triangle, and factors that keep a matrix's norm."""
    i, j = np.triu_indices(p)
    return i, j, np.where(i == j, 1.0, np.sqrt(2.0))


def _scatter(losses, dispersion, df):
    """The clients' scatters about the dispersion, by name."""
    return {"scatter": 2.0 * losses / dispersion / np.maximum(df, LEAST_DF)}


def _scatter_block(arguments):
    """The block of the scatters, by name, if they are asked for."""
    return {"scatter": Block((1,), SCATTER_CLIP, 0.1)} if arguments["scatters"] else {}


class PosteriorMoments(Release):
    """Moments of the clients' posteriors, in coordinates whitened by the last population.

    Under the population the whitened posterior mean ``u`` of a client, ``theta_i = theta_k + L
    u``, has the covariance ``W = I - V``, V its posterior covariance: the norm of u is about the
    root of the number of parameters, and that of W at most as large, whatever the units.  The
    bounds need no tuning.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Means of the clusters.
    root : ndarray of shape (n_params,)
        L, standard deviations of the parameters about them.
    weights : ndarray of shape (K,)
        Probabilities of the clusters.
    dispersion : float
        As of :class:`~skcfl.calls.posteriors_asked.PosteriorSums`.
    scatters : bool
        Whether the dispersion is estimated.
    sizes : ndarray of shape (K,) or None
        As of :class:`Moves`, sums of responsibilities: exact arrays of smaller clusters are zero.

    Returns
    -------
    sums : dict of str to ndarray
        With responsibilities ``r``: "shifts" (K, p) of ``r u``; "information" (K, p (p + 1) / 2)
        of ``r W``, its upper triangle with entries beside the diagonal times the root of 2;
        "squares" (p,) of ``r u^2``; "scatter" of the scatter of the client's rows over their
        degrees of freedom and the dispersion, if asked for; "counts" (K,) of r.
    """

    down = {
        **{"theta": ("K", "p"), "root": ("p",), "weights": ("K",), "dispersion": ()},
        **{"scatters": None, "sizes": None},
    }

    def check_settings(cls, model, arguments):
        if not isinstance(arguments["scatters"], bool | np.bool_):
            raise ValueError(f"{cls.name} takes scatters, True or False.")
        positive = arguments["dispersion"] > 0 and (arguments["weights"] > 0).all()
        if not positive or (arguments["root"] < 0).any():
            raise ValueError(f"{cls.name} takes positive weights and dispersions, and roots >= 0.")

    def bounded(cls, model, arguments):
        K, p = arguments["theta"].shape
        size = float(np.sqrt(p))
        return {
            "shifts": Block((K, p), size + 0.5, 0.35),
            "information": Block((K, p * (p + 1) // 2), size, 0.25),
            "squares": Block((p,), 2.0 * size, 0.25),
            **_scatter_block(arguments),
            "counts": Block((K,), 1.0, 0.05),
        }

    def of_enough(cls, arguments, least, counted):
        several = len(arguments["theta"]) > 1
        return cls._of_counted(arguments, least, counted) if several else arguments

    def kernel(cls, site, block, slots, theta, root, weights, dispersion, scatters, sizes):
        p = theta.shape[1]
        i, j, double = _upper(p)

        def arrays(clients, found, r, _):
            u = found.modes
            W = np.stack([np.eye(p) - each.inner for each in found.curvatures])
            known = np.einsum("kc,kcpp->c", r, W)
            n = site.client_weights[clients]
            losses = (r * found.losses).sum(axis=0)
            shown = r if sizes is None else r * sizes[:, None]
            return {
                "shifts": np.einsum("kc,kcp->ckp", shown, u),
                "information": np.einsum("kc,kcq->ckq", shown, W[:, :, i, j] * double),
                "squares": np.einsum("kc,kcp->cp", r, u**2),
                **(_scatter(losses, dispersion, n - known) if scatters else {}),
                "counts": r.T,
            }

        return _of_pieces(arrays, site, block, slots, theta, root, weights, dispersion)


class PosteriorSpread(Release):
    """How the clients' posterior means spread about one mean: the first release of clusters.

    Parameters
    ----------
    theta : ndarray of shape (1, n_params)
        The mean.
    root, dispersion, scatters : object
        As of :class:`PosteriorMoments`.

    Returns
    -------
    sums : dict of str to ndarray
        "shifts" (p,) of u; "information" (p (p + 1) / 2,) of W; "products" (p (p + 1) / 2,) of
        ``u u'``; "scatter" and "counts" (1,). Matrices are triangles, and letters mean what they
        do in :class:`PosteriorMoments`.
    """

    down = {"theta": ("K", "p"), "root": ("p",), "dispersion": (), "scatters": None}

    def check_settings(cls, model, arguments):
        if len(arguments["theta"]) != 1:
            raise ValueError(f"{cls.name} takes one mean.")
        PosteriorMoments.check_settings(model, {**arguments, "weights": np.ones(1)})

    def bounded(cls, model, arguments):
        p = model.n_params
        size, triangle = float(np.sqrt(p)), (p * (p + 1) // 2,)
        return {
            "shifts": Block((p,), size + 0.5, 0.3),
            "information": Block(triangle, size, 0.2),
            "products": Block(triangle, 2.0 * size, 0.35),
            **_scatter_block(arguments),
            "counts": Block((1,), 1.0, 0.05),
        }

    def kernel(cls, site, block, slots, theta, root, dispersion, scatters):
        p = theta.shape[1]
        i, j, double = _upper(p)

        def arrays(clients, found, *_):
            u, W = found.modes[0], np.eye(p) - found.curvatures[0].inner
            df = site.client_weights[clients] - np.einsum("cpp->c", W)
            return {
                "shifts": u,
                "information": W[:, i, j] * double,
                "products": u[:, i] * u[:, j] * double,
                **(_scatter(found.losses[0], dispersion, df) if scatters else {}),
                "counts": np.ones(len(u)),
            }

        return _of_pieces(arrays, site, block, slots, theta, root, np.ones(1), dispersion)


class StartScores(Release):
    """How likely several starts make the rows of a client, compared with each other.

    Parameters
    ----------
    theta : ndarray of shape (n_starts * n_clusters, n_params)
        The means of the clusters of each start, one start after the other.
    root, dispersion : object
        As of :class:`PosteriorMoments`; clusters of a start are equally probable.
    n_starts : int
        Number of starts.

    Returns
    -------
    sums : dict of str to ndarray
        "scores" (n_starts,), marginal log-likelihoods less their mean over the starts.
    """

    down = {"theta": ("K", "p"), "root": ("p",), "dispersion": (), "n_starts": None}

    def check_settings(cls, model, arguments):
        n, K = arguments["n_starts"], len(arguments["theta"])
        if not isinstance(n, int) or n < 1 or K % n:
            raise ValueError(f"{cls.name} takes n_starts, a divisor of the number of means.")
        terms = {**arguments, "weights": np.ones(1), "scatters": False}
        PosteriorMoments.check_settings(model, terms)

    def bounded(cls, model, arguments):
        n = arguments["n_starts"]
        return {"scores": Block((n,), float(np.sqrt(n)), 1.0)}

    def kernel(cls, site, block, slots, theta, root, dispersion, n_starts):
        def arrays(clients, found, *_):
            evidence = found.evidence.reshape(n_starts, -1, found.evidence.shape[1])
            scores = logsumexp(evidence, axis=1).T
            return {"scores": scores - scores.mean(axis=1, keepdims=True)}

        weights = np.ones(len(theta))
        return _of_pieces(arrays, site, block, slots, theta, root, weights, dispersion)


# ---------------------------------------------------------------------------------- models


def _trained(site, block, slots, start, rho, stages, step_size, draw):
    """Proximal points of linear models; others after stages of Adam: steps, and what they move."""
    model, c = site.model, len(slots)
    if hasattr(model, "prox"):
        return model.prox(block, start, np.full(c, float(rho)), start, 100)[0]
    seeds = _seeds(site.client_ids[slots], draw) if model.local_steps_only else None
    how = np.full(c, float(step_size)), None, np.zeros(c), "adam", None, seeds
    trained = start.copy()
    for steps, mask in stages:
        if mask.any():
            terms = TrainingTerms(None if mask.all() else mask)
            train(model, block, trained, np.full(c, steps), *how, terms)
    return trained


def _seeds(ids, draw):
    """Seeds of clients by their ids: their places depend on what other clients there are."""
    texts = [f"{draw}/{one!r}".encode() for one in ids.tolist()]
    digests = b"".join(blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8")


class Moves(Release):
    """How far clients would move the model of their cluster, each in the slot of its cluster.

    A linear model moves to its proximal point, the minimum of the client's objective plus
    ``rho / 2 ||x - theta_k||^2``; other models take steps of Adam.  A client takes the model of
    least loss on its own rows, and puts its move into the slot of that model, zeros elsewhere:
    the sum needs no labels, and the choice never leaves the client.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    unit : float
        Moves are clipped in this unit of the parameters.
    rho : float
        Pull of a proximal point.
    steps : int
        Steps of Adam.
    step_size : float
        Their length.
    draw : int
        What clients draw by.
    known : tuple of ndarray or None
        Ids of clients, and the position of the model of each; None lets clients choose. Clients
        with another id add nothing.
    sizes : ndarray of shape (K,) or None
        How many clients have chosen each model, as they say where moves are zero: exact moves of
        models of few are withheld. None withholds those of several models.

    Returns
    -------
    sums : dict of str to ndarray
        "moves" (K, p), in the unit, and "counts" (K,), the clients of each model.
    """

    down = {
        **{"theta": ("K", "p"), "unit": (), "rho": (), "step_size": ()},
        **{"steps": None, "draw": None, "known": None, "sizes": None},
    }
    #: Bound of a client's move, in the unit of the declared bounds.  Benchmark:
    #: benchmarks/private.py.
    clip = 1.0

    def check_settings(cls, model, arguments):
        steps, draw = arguments["steps"], arguments["draw"]
        whole = isinstance(steps, int) and isinstance(draw, int)
        if not whole or not 0 <= steps <= MOST_STEPS or draw < 0:
            raise ValueError(f"{cls.name} takes steps from 0 to {MOST_STEPS}, and a draw.")
        if (known := arguments["known"]) is not None:
            pair = isinstance(known, tuple) and len(known) == 2
            pair = pair and all(isinstance(part, np.ndarray) and part.ndim == 1 for part in known)
            pair = pair and len(known[0]) == len(known[1]) and known[1].dtype.kind in "iu"
            K = len(arguments["theta"])
            if not pair or not ((known[1] >= 0) & (known[1] < K)).all():
                raise ValueError(f"{cls.name} takes known ids and a model of each.")
        if not arguments["unit"] > 0 or arguments["rho"] < 0 or arguments["step_size"] < 0:
            raise ValueError(f"{cls.name} takes a positive unit, and rho and step_size >= 0.")

    def bounded(cls, model, arguments):
        K, p = arguments["theta"].shape
        return {"moves": Block((K, p), cls.clip, 0.9), "counts": Block((K,), 1.0, 0.1)}

    def of_enough(cls, arguments, least, counted):
        known, K = arguments["known"], len(arguments["theta"])
        if known is not None and (fewest := np.bincount(known[1], minlength=K).min()) < least:
            raise ValueError(f"a sum would be over {fewest} clients, {least} is the least")
        if known is None and K == 1:
            return arguments
        return cls._of_counted(arguments, least, counted)

    def kernel(cls, site, block, slots, theta, unit, rho, steps, step_size, draw, known, sizes):
        model, c = site.model, len(slots)
        choice, here = np.zeros(c, dtype=np.intp), np.ones(c)
        if known is not None:
            labels = dict(zip(*(part.tolist() for part in known), strict=True))
            ids = site.client_ids[slots].tolist()
            choice = np.array([labels.get(one, 0) for one in ids], dtype=np.intp)
            here = np.array([float(one in labels) for one in ids])
        elif len(theta) > 1:
            choice = np.nan_to_num(model.losses(block, theta), nan=np.inf).argmin(axis=1)
        start = theta[choice].astype(block.dtype)
        stages = [(steps, np.ones(model.n_params, dtype=bool))]
        trained = _trained(site, block, slots, start, rho, stages, step_size, draw)
        moves = np.zeros((c, *theta.shape))
        counts = np.zeros((c, len(theta)))
        moves[np.arange(c), choice] = here[:, None] * (trained - start) / unit
        if sizes is not None:
            moves[:, ~sizes] = 0.0
        counts[np.arange(c), choice] = here
        return {"moves": moves, "counts": counts}


class SharedMoves(Release):
    """How far clients would move shared parameters, with own parameters that they keep.

    A linear model moves to its proximal point, in all of its parameters; another one first trains
    the client's own parameters by steps of Adam, then the shared ones.  The own parameters stay at
    the client, and go on from there in its next release.

    Parameters
    ----------
    theta : ndarray of shape (1, n_params)
        The model. Its own parameters are the start of a client's.
    shared : ndarray of shape (n_params,) of bool
        Which parameters are shared.
    head_steps : int
        Steps of Adam of the own parameters.
    unit, rho, steps, step_size, draw : object
        As of :class:`Moves`; the steps are those of the shared parameters.

    Returns
    -------
    sums : dict of str to ndarray
        "moves" (n_shared,), in the unit, and "counts" (1,), the clients.
    """

    down = {
        **{"theta": ("K", "p"), "shared": None, "unit": (), "rho": (), "step_size": ()},
        **{"head_steps": None, "steps": None, "draw": None},
    }

    def check_settings(cls, model, arguments):
        shared = arguments["shared"]
        mask = isinstance(shared, np.ndarray) and shared.dtype == bool
        if len(arguments["theta"]) != 1 or not mask or shared.shape != (model.n_params,):
            raise ValueError(f"{cls.name} takes one model, and a mask of shared parameters.")
        if not shared.any():
            raise ValueError(f"{cls.name} takes a mask of shared parameters with some in it.")
        rest = {name: arguments[name] for name in Moves.down.keys() - {"known", "sizes"}}
        rest |= {"known": None, "sizes": None}
        Moves.check_settings(model, rest)
        heads = {**rest, "steps": arguments["head_steps"]}
        Moves.check_settings(model, heads)

    def bounded(cls, model, arguments):
        size = int(np.count_nonzero(arguments["shared"]))
        return {"moves": Block((size,), Moves.clip, 0.9), "counts": Block((1,), 1.0, 0.1)}

    def kernel(
        cls, site, block, slots, theta, shared, unit, rho, head_steps, steps, step_size, draw
    ):
        common = np.repeat(theta, len(slots), axis=0).astype(block.dtype)
        start = site.state.recall("kept of releases", site.entries[slots], common)
        start[:, shared] = common[:, shared]
        stages = (head_steps, ~shared), (steps, shared)
        trained = _trained(site, block, slots, start, rho, stages, step_size, draw)
        finite = np.isfinite(trained).all(axis=1)
        site.state.keep("kept of releases", site.entries[slots[finite]], trained[finite])
        moves = (trained - start)[:, shared] / unit
        return {"moves": moves, "counts": np.ones((len(slots), 1))}
