"""Files of several processes: a lock, which ends with its process, and writing a whole file."""

import contextlib
import os
import platform
import sys
import time
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    #: The locked byte, beyond the text: locked bytes cannot be read on Windows.
    LOCKED_BYTE = 2**30

    def _lock(number):
        os.lseek(number, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(number):
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: Seconds between two looks at a lock that is waited for.
LOOK = 0.01


@contextlib.contextmanager
def locked(path):
    """Wait for the right to write a file, and hold it for a block of code."""
    while True:
        try:
            lock = FileLock(path)
            break
        except BlockingIOError:
            time.sleep(LOOK)
    try:
        yield
    finally:
        lock.release()


def write_whole(path, data, mode=0o666):
    """Write a file that is there with all of its bytes, or as it was before.

    Parameters
    ----------
    path : Path
        The file.
    data : bytes
        What it holds.
    mode : int, default=0o666
        Who may read and write it, as far as the process allows that to new files.
    """
    path = Path(os.path.realpath(path))  # the lock is of the file, not of a link to it
    new = path.with_name(f"{path.name}.new")
    try:
        with open(os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        if os.name == "posix":  # the new name is on the disk as well
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


class FileLock:
    """The right to write a file, held until :meth:`release` or the end of the process.

    The operating system holds the lock on a small file beside it, ``<path>.lock``, with the
    process and its machine as text.  A file that a killed process has left is not locked.

    Parameters
    ----------
    path : path-like
        The file, which need not exist.

    Raises
    ------
    BlockingIOError
        If another process, or another lock of this one, has it. The error's text is the holder.
    OSError
        If there can be no lock in this folder.
    """

    def __init__(self, path):
        self._path = Path(f"{os.path.realpath(path)}.lock")
        while True:
            self._number = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _lock(self._number)
                # The last holder may have deleted the file after it was opened here.
                if self._is_there():
                    break
            except (BlockingIOError, PermissionError) as error:
                raise BlockingIOError(self._close_and_read()) from error
            except BaseException:
                os.close(self._number)
                raise
            os.close(self._number)
        with contextlib.suppress(OSError):  # a full disk: the lock is held, without its text
            os.ftruncate(self._number, 0)
            os.lseek(self._number, 0, os.SEEK_SET)
            os.write(self._number, f"process {os.getpid()} on {platform.node()}".encode())

    def _is_there(self):
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._number), os.stat(self._path))
        return False

    def _close_and_read(self):
        """What the holder has written."""
        os.lseek(self._number, 0, os.SEEK_SET)
        text = os.read(self._number, 200).decode(errors="replace")
        os.close(self._number)
        return text or "a process"

    def release(self):
        """Let others have it; later calls do nothing."""
        if self._number is None:
            return
        # Deleted while it is locked, so that it is this lock's; Windows deletes no open files.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._number)
        self._number = None
