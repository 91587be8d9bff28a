"""What pytest leaves out: what is not to be run, and examples of an extra that is not there."""

from importlib.util import find_spec

collect_ignore = ["tests/typed"]  # read by mypy
if find_spec("torch") is None:
    collect_ignore += [
        *("skcfl/models/_torch_model.py", "doc/torch_modules.rst"),
        "tests/helpers/torch_modules.py",
    ]
