"""Writes a file so that nobody ever sees half of it: a temporary file beside it, then a rename."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from bsguard_cli.errors import BadInput


def write_atomically(path: Path, data: bytes, mode: int = 0o644, follow: bool = True) -> None:
    """Writes `path`. mode: of the file, less the umask. follow: whether the folder may be reached over a link."""
    folder = path.parent
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    temporary = f".{path.name}.{secrets.token_hex(6)}"
    try:
        at = os.open(folder, flags)
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} cannot be written to: {getattr(error, 'strerror', None) or error}") from None
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=at)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.rename(temporary, path.name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            os.unlink(temporary, dir_fd=at)
            raise
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    finally:
        os.close(at)
