"""The last model that each client has answered with, which is not sent to it again."""

import numpy as np


class Forgotten(RuntimeError):
    """Raised where a client is asked to continue from its last answer and has none.

    So it is at a place that was started anew; its clients are sent their starts then.
    """


class LastAnswers:
    """One model per client; of those that have not answered, nothing.

    Both sides keep one.  A client goes on from what its own place remembers; the server tells by
    its copy whether a start would be news to a client.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    """

    def __init__(self, n_clients):
        self.known = np.zeros(n_clients, dtype=bool)
        self.models = None

    def keep(self, places, models):
        """Remember models (m, p) of the clients at some places, a slice or positions."""
        if self.models is None or self.models.dtype != models.dtype:
            # Room is taken once the first model comes, and double precision is not lost.
            old = self.models
            dtype = models.dtype if old is None else np.result_type(old, models)
            self.models = np.zeros((len(self.known), models.shape[1]), dtype=dtype)
            if old is not None:
                self.models[:] = old
        self.models[places] = models
        self.known[places] = True

    def of(self, places):
        """Models of some clients, and which of them are known."""
        known = self.known[places]
        return (None if self.models is None else self.models[places]), known

    def continued(self, places, own, sent):
        """Models that some clients go on from: what they answered where `own`, else those sent."""
        if self.models is None:
            return sent
        own_models = self.models[places]
        return own_models if sent is None else np.where(own[:, None], own_models, sent)

    def same(self, places, models):
        """Which of the models (m, p) are those remembered."""
        own, known = self.of(places)
        if own is None:
            return known.copy()
        return known & (own == models).all(axis=1)

    def restore(self, places, state):
        """Remember what :meth:`of` has returned."""
        models, known = state
        if models is not None:
            self.keep(places, models)
        self.known[places] = known
