"""True if something fits in memory, asked before it is allocated."""

import os
from pathlib import Path

from ..exceptions import NotEnoughMemoryError

# Bytes that are not worth the question.
SMALL = 2**26


def available():
    """Bytes of memory that this process may still take up; infinite if unknown.

    Memory of the machine, or the limit of a control group of Linux if that is less.
    """
    machine = _meminfo()
    if machine is None:
        try:
            machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            machine = float("inf")
    groups = Path("/sys/fs/cgroup")
    limits = [
        _number(groups / most) - _number(groups / used)
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        )
        if _number(groups / most) is not None and _number(groups / used) is not None
    ]
    return max(min([machine, *limits]), 0)


def _meminfo():
    """Memory that Linux says is available, None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * found[0] if found else None


def _number(path):
    """Number in a file, None without one."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def require(needed, what, instead):
    """Raise an error if so much memory is not available.

    Parameters
    ----------
    needed : int
        Bytes.
    what : str
        Subject of the sentence, in the plural.
    instead : str or callable
        A sentence that says what would fit; a function is called with the bytes available.

    Raises
    ------
    NotEnoughMemoryError
        If they are not available.
    """
    if needed <= SMALL:
        return
    there = available()
    if needed > there:
        hint = instead(there) if callable(instead) else instead
        raise NotEnoughMemoryError(
            f"{what} need {_size(needed)} of memory, and {_size(there)} are available. {hint}"
        )


def _size(number):
    """Bytes as text."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
