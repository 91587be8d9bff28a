"""What pytest leaves out where an extra is not installed: examples that need it."""

from importlib.util import find_spec

collect_ignore = []
if find_spec("torch") is None:
    collect_ignore += ["skcfl/models/_torch_model.py", "doc/torch_modules.rst"]
