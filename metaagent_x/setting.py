"""What settings are, and how those are refused that cannot work."""

from __future__ import annotations

import urllib.parse
from typing import Any

Settings = Any  # an ml_collections.ConfigDict: its fields have no static types


class ConfigError(ValueError):
    """A setting that cannot work. The message names the field, its value and the way out. Exit code 2."""


def is_address(url: object) -> bool:
    """Whether it is the http(s) address of a host."""
    try:
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        return bool(parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:  # a port that is none
        return False
