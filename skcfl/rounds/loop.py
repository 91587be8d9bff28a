r"""The round: draw, ask, choose, update, guard, record.

A method is a rule of choice (``choice.py``: which client gets which model) and a rule of update
(``update.py``: the new models).  Their calls to the clients are booked. Starts, restarts, the
number of clusters and polishing call the rounds from outside.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from .._progress import loop
from ..federation.result import Result
from .state import Silence

__all__ = ["run_rounds"]

# Models with a smaller squared length are zero; targets may have any units.
SHORTEST = 1e-100


def run_rounds(state, draw, rule, update, record, stop, max_iter, guards=()):
    """Run communication rounds.

    Parameters
    ----------
    state : State
        Models and labels to start from.
    draw : Draw
        Who takes part.
    rule : ChoiceRule
        Who gets which model.
    update : UpdateRule
        Rule of update of the models.
    record : callable
        ``record(state, answers)`` after every round; it may return metrics for the progress
        display, by name.
    stop : callable
        ``stop(state)``: whether the rounds may end.
    max_iter : int
        Most rounds.
    guards : sequence of Safeguard, default=()
        Further safeguards.

    Returns
    -------
    state : State
        State after the last round.
    """
    # Lengths of models count from here, or a constant added to the targets would end the rounds.
    origin = draw.everyone.pool.model.origin
    with loop("round", max_iter) as rounds:
        for _ in rounds:
            who = draw()
            answers = None  # no memory for those of two rounds
            try:
                answers = rule.ask(who, state, update.gradients)
                answers.choice = rule.choose(answers, state)
                answers = update.ask(answers, state)
            except Silence:
                continue
            for guard in guards:
                if (theta := guard.instead(answers, state)) is not None:
                    new = replace(state, theta=theta, round=state.round + 1, stable=0)
                    break
            else:
                new = _advance(state, update(answers, state), answers)
                for guard in guards:
                    guard.mend(new, answers, state)
            befores = (guard.before() for guard in guards)
            new.before = next((theta for theta in befores if theta is not None), None)
            new.change = relative_change(state.theta - origin, new.theta - origin)
            state = new
            values = record(state, answers) or {}
            rounds.tell(partial(so_far, state, values.get("objective", 0.0)), **values)
            if stop(state) and all(guard.confirm(state) for guard in guards):
                break
    return state


def so_far(state, objective):
    """Result as if the rounds ended here."""
    return Result(
        cluster_params=state.theta,
        labels=_known_labels(state.labels),
        objective=objective,
        n_iter=state.round,
        history={},
    )


def _advance(state, theta, answers):
    """The state after an update, the participants' labels those that they have chosen."""
    index, choice = answers.who.index, answers.choice
    stable = state.stable + 1 if (choice == state.labels[index]).all() else 0
    labels = state.labels.copy()
    labels[index] = choice
    return replace(state, theta=theta, labels=labels, round=state.round + 1, stable=stable)


def choose_all(rule, everyone, state):
    """Labels of all clients under the present models, found from scratch.

    Clients that are silent keep theirs; those that never answered are counted to the model of
    most clients.
    """
    answers = None
    while answers is None:
        try:
            answers = rule.ask(everyone, replace(state, held=None))
        except Silence:
            continue  # a FederationError, after some times
    labels = state.labels.copy()
    labels[answers.who.index] = rule.choose(answers, state, final=True)
    return _known_labels(labels)


def _known_labels(labels):
    """Labels; clients that never answered (-1) get the model of most clients."""
    unknown = labels < 0
    if not unknown.any():
        return labels
    return np.where(unknown, np.bincount(labels[~unknown], minlength=1).argmax(), labels)


def relative_change(old, new):
    """Largest change of a model relative to its length; infinite if a model was zero and moved."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        moved = new - old
        size, distance = (np.einsum("kp,kp->k", w, w).astype(float) for w in (old, moved))
        size[size < SHORTEST] = distance[distance < SHORTEST] = 0.0
        ratios = np.divide(distance, size, out=np.zeros_like(size), where=distance != 0.0)
        return float(np.sqrt(ratios.max()))
