"""What pytest leaves out, such as examples of an extra that is not there; figures are closed."""

import sys
from importlib.util import find_spec

import pytest

collect_ignore = ["tests/typed"]  # read by mypy
if find_spec("torch") is None:
    collect_ignore += [
        *("skcfl/models/_torch_model.py", "doc/torch_modules.rst"),
        "tests/helpers/torch_modules.py",
    ]


@pytest.fixture(autouse=True)
def close_figures():
    """Examples leave figures open, of which matplotlib warns after twenty in a process."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
