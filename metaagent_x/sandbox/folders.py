"""Private folders of contained runs: how full one is, and removing it, whatever a program made of it."""

from __future__ import annotations

import contextlib
import os


def is_full(folder: str, max_files: int, max_bytes: int) -> bool:
    """True if there are more files and folders in it, at any depth, or more bytes on disk."""
    files = size = 0
    left = [folder]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    files, size = files + 1, size + 512 * status.st_blocks
                    if files > max_files or size > max_bytes:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except FileNotFoundError:
            pass  # gone meanwhile
        except OSError:
            return True  # a path too long, a folder made unreadable
    return False


def remove(folder: str) -> None:
    """Removes a folder tree of any depth and with any permissions. Nothing may be writing to it any more.

    Inner folders are moved up one by one, so no path gets long and nothing recurses; links are not followed.
    """
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # nearly always empty
        return
    mark, number = os.urandom(8).hex(), 0  # names that the program cannot have taken
    with contextlib.suppress(OSError):
        while inner := _clear(folder):
            for path in inner:
                os.chmod(path, 0o700)
                for entry in list(os.scandir(path)):
                    if entry.is_dir(follow_symlinks=False):
                        number += 1
                        os.chmod(entry.path, 0o700)  # to move a folder one must be able to write to it
                        os.rename(entry.path, os.path.join(folder, f"{mark}{number}"))
                _clear(path)
                os.rmdir(path)
        os.rmdir(folder)


def clear(folder: str) -> None:
    """Empties a folder, which stays. Nothing may be writing to it any more."""
    with os.scandir(folder) as entries:
        if next(entries, None) is None:
            return
    for path in _clear(folder):
        remove(path)


def _clear(folder: str) -> list[str]:
    """Removes all that is no folder from a folder; returns the folders in it."""
    os.chmod(folder, 0o700)
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            else:
                os.unlink(entry.path)
    return inner
