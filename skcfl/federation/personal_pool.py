"""Calls of a server about models that clients have of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, Optimizer


class PersonalCalls:
    """Part of :class:`~skcfl.federation.ClientPool`: training of models of the clients' own.

    What clients keep between calls stays where they are; :meth:`recall` publishes it.  Arguments
    that the methods have in common are those of :meth:`ClientPool.local_update`.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What a pool has."""

    def _of_each(self, value):
        """A number for each client, in the pool's type."""
        return np.broadcast_to(np.asarray(value, dtype=self.dtype), (self.n_clients,))

    def _training(self, steps, step_size, optimizer, batch_size):
        """Arguments of calls in which clients train."""
        return {
            "steps": np.broadcast_to(np.asarray(steps), (self.n_clients,)),
            "rates": self._of_each(step_size),
            "optimizer": optimizer,
            "batch_size": batch_size,
            "draw": self._draw(batch_size),
        }

    def moreau_update(
        self,
        w: Array,
        steps: int,
        step_size: float | Array,
        rho: float,
        move: float,
        n_moves: int = 1,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
        personal: bool = False,
        judged: bool = False,
        whole: bool = False,
    ) -> Array:
        """Let every client descend the Moreau envelope of its objective.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Starts, and first centres of the pull.
        steps : int
            Steps of training towards a proximal point, from the one before.
        step_size : float or ndarray of shape (n_clients,)
            Their length.
        rho : float
            Strength of the pull: ``rho / 2 ||x - center||^2``.
        move : float
            Rate of the moves ``center <- center - move * rho * (center - x)``.
        n_moves : int, default=1
            Number of moves.
        optimizer, batch_size
            As for :meth:`local_update`.
        personal : bool, default=False
            Whether clients answer with their last proximal points, or with their centres.
        judged : bool, default=False
            Whether clients were sent their starts before, to judge.
        whole : bool, default=False
            Whether those who are silent are asked again.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
        """
        arguments = {
            "w": self._own(w),
            **self._training(steps, step_size, optimizer, batch_size),
            "rho": self._of_each(rho),
            "moves": self._of_each(move),
            "n_moves": int(n_moves),
            "personal": bool(personal),
        }
        told, again = ("w",) if judged else (), True if whole else None
        return self._ask("moreau_update", arguments, kept=told, whole=again)[0]

    def meta_update(
        self,
        w: Array,
        steps: int | Array,
        step_size: float | Array,
        inner: float | Array,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
        exact: bool = False,
        judged: bool = False,
    ) -> Array:
        """Let every client train the model that is best after one more step.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Starts.
        steps, step_size, optimizer, batch_size, judged
            As for :meth:`local_update`; a step draws two batches.
        inner : float or ndarray of shape (n_clients,)
            Length of the inner step: ``f(w - inner * gradient of f at w)`` is what falls.
        exact : bool, default=False
            Whether the gradient passes through the inner step, which takes second derivatives.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
        """
        arguments = {
            "w": self._own(w),
            **self._training(steps, step_size, optimizer, batch_size),
            "inner": self._of_each(inner),
            "exact": bool(exact),
        }
        return self._ask("meta_update", arguments, kept=("w",) if judged else ())[0]

    def class_statistics(self, w: Array, judged: bool = False) -> tuple[Array, Array, Array]:
        """What clients say of their rows' representations under their models.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            One model per client.
        judged : bool, default=False
            Whether clients were sent these models before.

        Returns
        -------
        means : ndarray of shape (n_clients, n_classes, n_representation)
            Weighted means of each class, zero of classes without rows.
        counts : ndarray of shape (n_clients, n_classes)
            Weight of the rows of each class.
        squares : ndarray of shape (n_clients,)
            Weighted mean of the squared lengths.
        """
        arguments = {"w": self._own(w)}
        return self._ask("class_statistics", arguments, kept=("w",) if judged else ())

    def keep(self, w: Array) -> None:
        """Let every client keep a model (n_clients, n_params) to go on from."""
        self._ask("keep", {"w": self._own(w)})

    def recall(self, w: Array, judged: bool = False) -> Array:
        """Models that the clients keep, which they publish.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            What stands for the model of a client that keeps none, or does not answer.
        judged : bool, default=False
            Whether clients were sent these models before.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
        """
        return self._ask("recall", {"w": self._own(w)}, kept=("w",) if judged else ())[0]

    def personal_step(
        self,
        center: Array,
        steps: int | Array,
        step_size: float | Array,
        rho: float,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
        judged: bool = False,
    ) -> None:
        """Let every client train the model that it keeps, pulled to a centre.

        Parameters
        ----------
        center : ndarray of shape (n_clients, n_params)
            Centres; a client that keeps no model starts there.
        steps, step_size, optimizer, batch_size
            As for :meth:`local_update`.
        rho : float
            Strength of the pull.
        judged : bool, default=False
            Whether clients were sent the centres before.
        """
        arguments = {
            "center": self._own(center),
            **self._training(steps, step_size, optimizer, batch_size),
            "rho": self._of_each(rho),
        }
        self._ask("personal_step", arguments, kept=("center",) if judged else ())

    def partial_update(
        self,
        w: Array,
        shared: Array,
        stages: Sequence[tuple[Any, ...]],
        step_size: float | Array,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
        prototypes: Array | None = None,
        strength: float = 0.0,
        judged: bool = False,
    ) -> tuple[Array, Array]:
        """Let every client train the model that it keeps after replacing what is shared.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_shared)
            Values of the shared parameters.
        shared : ndarray of shape (n_params,) of bool
            Which they are.
        stages : list of tuple
            ``(steps, trained)``: steps of training, and the mask of the parameters trained.
        step_size, optimizer, batch_size
            As for :meth:`local_update`.
        prototypes : ndarray of shape (n_classes, n_representation), default=None
            Points that the rows' representations are drawn to, by class; NaN where there is none.
        strength : float, default=0.0
            Factor of the mean squared distance to them.
        judged : bool, default=False
            Whether clients were sent the shared parameters before.

        Returns
        -------
        w : ndarray of shape (n_clients, n_shared)
            The shared parameters after training.
        values : ndarray of shape (n_clients,)
            Objectives of the models before.
        """
        w = np.broadcast_to(np.asarray(w, self.dtype), (self.n_clients, int(shared.sum())))
        training = self._training(0, step_size, optimizer, batch_size)
        training.pop("steps")
        arguments = {
            "w": w,
            "shared": shared,
            "stages": tuple(stages),
            "prototypes": _as_type(prototypes, self.dtype),
            "strength": float(strength),
            **training,
        }
        return self._ask("partial_update", arguments, kept=("w",) if judged else ())

    def blended_update(
        self,
        w: Array,
        blended: Array,
        steps: int | Array,
        step_size: float | Array,
        blend_rate: float = 1.0,
        share: float = 0.8,
        tol: float = 0.1,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
    ) -> tuple[Array, Array]:
        """Let every client blend a model into the one that it keeps, and train.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Models.
        blended : ndarray of shape (n_params,) of bool
            Parameters that are blended, the others being replaced.
        steps, step_size, optimizer, batch_size
            As for :meth:`local_update`.
        blend_rate : float, default=1.0
            Step of the gradient descent on the weights of the blend.
        share : float, default=0.8
            Part of the rows that the weights are learned from, drawn anew in every call.
        tol : float, default=0.1
            Standard deviation of the last losses below which the weights are learned, the first
            time; later times take one epoch: a step, or one of every batch.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
            Trained models, which the clients keep too.
        values : ndarray of shape (n_clients,)
            Objectives after blending.
        """
        arguments = {
            "w": self._own(w),
            "blended": blended,
            **self._training(steps, step_size, optimizer, batch_size),
            "blend_rate": float(blend_rate),
            "share": float(share),
            "tol": float(tol),
        }
        if arguments["draw"] is None:
            arguments["draw"] = self._seeds.next()
        return self._ask("blended_update", arguments)

    def prototype_update(
        self,
        prototypes: Array | None,
        strength: float,
        steps: int | Array,
        step_size: float | Array,
        optimizer: Optimizer = "sgd",
        batch_size: int | None = None,
    ) -> Array:
        """Let every client train the model that it keeps, its representations drawn to points.

        Parameters
        ----------
        prototypes : ndarray of shape (n_classes, n_representation) or None
            Points by class, NaN where there is none.
        strength : float
            Factor of the mean squared distance to them.
        steps, step_size, optimizer, batch_size
            As for :meth:`local_update`.

        Returns
        -------
        means, counts
            As of :meth:`class_statistics`, under the trained models.
        values : ndarray of shape (n_clients,)
            Objectives of the models before.
        """
        arguments = {
            "prototypes": _as_type(prototypes, self.dtype),
            "strength": float(strength),
            **self._training(steps, step_size, optimizer, batch_size),
        }
        return self._ask("prototype_update", arguments)


def _as_type(array, dtype):
    return None if array is None else np.ascontiguousarray(array, dtype=dtype)
