"""Rules of choice."""

import numpy as np
import pytest

from skcfl.models._local_model import choose
from skcfl.rounds.choice import LeastLoss
from skcfl.rounds.state import Answers


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_is_never_chosen(bad):
    losses = np.array([[bad, 2.0, 3.0], [4.0, bad, 5.0], [bad, bad, 6.0]])
    answers = Answers(None, losses=losses)
    np.testing.assert_array_equal(LeastLoss().choose(answers, None, final=True), [1, 0, 2])
    np.testing.assert_array_equal(choose(losses), [1, 0, 2])
