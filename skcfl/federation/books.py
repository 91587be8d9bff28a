"""The file in which a place keeps what its clients have spent of their privacy budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..exceptions import PrivacyError
from .file_lock import write_whole

# More is spent by no release of noise that floats can hold.
MOST = 1e300


def read_books(path: Path, participation: float) -> dict[str, Any]:
    """What is spent, with which participation, and the multiplier of the last release.

    Parameters
    ----------
    path : Path
        A file of :func:`write_books`.
    participation : float
        What the owner of the rows declares: costs of releases to other shares do not add up.

    Returns
    -------
    books : dict

    Raises
    ------
    PrivacyError
        If the file is damaged, or was spent with another participation.
    """
    try:
        books: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    spent: Any = books.get("spent") if isinstance(books, dict) else None
    if type(spent) not in (int, float) or not 0.0 <= spent < MOST:
        raise _damaged(path, f"{books!r:.80}")
    before = books.get("participation", 1.0 if spent else participation)
    if before != participation:
        raise PrivacyError(
            f"account={str(path)!r} was spent with participation={before} (1.0 if the file does "
            f"not say), and allows no other, got {participation}. Nothing is released."
        )
    return books


def write_books(path: Path, books: dict[str, Any]) -> None:
    """Write all of the books, or nothing: a file that is cut would be an account of nothing."""
    write_whole(path, json.dumps(books).encode())


def _damaged(path: Path, got: Any) -> PrivacyError:
    return PrivacyError(
        f"account={str(path)!r} must be a file of JSON with 'spent', a number of at least 0, got "
        f"{got}. Nothing is released: restore the file, as a new one would forget what is spent."
    )
