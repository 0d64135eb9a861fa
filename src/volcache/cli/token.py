"""Tokens as commands get them: from a file or from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from volcache.errors import ConfigError

ADMIN_TOKEN: Final = "VOLCACHE_ADMIN_TOKEN"  # noqa: S105 - A name.


def token_of(file: str | None, variable: str) -> str:
    """
    Return the token in a file or, without a file, in the environment; may be empty.

    Each character is a byte of UTF-8, as a header is sent.

    Raises:
        ConfigError: The file cannot be read, or the token cannot be sent.
    """
    token, source = os.environ.get(variable, ""), variable
    if file is not None:
        source = file
        try:
            token = Path(file).read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ConfigError(f"{file}: cannot be read: {reason}") from error
    if not token.isprintable():
        raise ConfigError(f"{source}: the token has control characters")
    return token.encode().decode("latin-1")


def read_token(file: str | None) -> str:
    """
    Return the `admin_token`: the first line of a file, or the environment variable.

    Raises:
        ConfigError: There is none, or it cannot be sent.
    """
    token = token_of(file, ADMIN_TOKEN)
    if not token:
        raise ConfigError(
            f"no token: set {ADMIN_TOKEN} to the admin_token of the instances, or give"
            " --token-file"
        )
    return token
