"""
The fast path: plain GETs and PUTs are answered by the native core in one call.

It does what `App` does, for requests that need nothing special: no conditions, no range, no
expiry to decide on, no error. It passes everything else on to `App`, including whatever
fails, so that each decision is made in one place, in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volcache.front import NativeApp
from volcache.http.content_types import TYPES

if TYPE_CHECKING:
    from volcache.http.app import App


def with_fast_path(app: App, *, is_merged: bool = False) -> NativeApp:
    """
    Return an application that answers plain requests natively.

    Args:
        app: Answers all other requests.
        is_merged: Pass all headers as the value of the first one, with line ends between
            them. bjoern sends the same bytes and saves a tenth of a request; WSGI does
            not allow it.
    """
    return NativeApp(app, TYPES, is_merged=is_merged)
