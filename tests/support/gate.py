"""What the tests of the gate need."""

from __future__ import annotations

from typing import Final

import pytest

from volcache.store.native import IS_NATIVE

# If bjoern was built without the gate, they fail: `make test` builds it.
NEEDS_GATE: Final = pytest.mark.skipif(
    not IS_NATIVE, reason="there is no gate without the native core"
)
