"""reload.py: which settings change, in which order, and what is reported."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest

from volcache.errors import ConfigError
from volcache.reload import Reloader, Settings
from volcache.ring import OwnKeys
from volcache.settings import DEFAULTS, Config


class Place:
    """Where settings are read, and what took effect."""

    def __init__(self) -> None:
        """Begin with the defaults."""
        self.config = DEFAULTS
        self.ring: OwnKeys | None = None
        self.applied: list[Config] = []
        self.reloader = Reloader(Settings(self.config), self.read)
        self.reloader.start(lambda settings: self.applied.append(settings.config))
        assert self.applied.pop() == DEFAULTS

    def read(self) -> Settings:
        """Return the settings."""
        if self.config.port == 0:
            raise ConfigError("wrong")
        return Settings(self.config, self.ring)


@pytest.fixture
def place() -> Iterator[Place]:
    """Yield one; the level of the log is restored."""
    logger = logging.getLogger("volcache")
    level = logger.level
    yield Place()
    logger.setLevel(level)


def test_other_contents_of_a_list_are_a_change(place: Place) -> None:
    """Although the setting names the same file."""
    for ring in (OwnKeys(array("I", [1]), array("I", [1])), None):
        place.ring = ring
        assert place.reloader.reload() == "changed: ring"
        assert place.reloader.reload() == "nothing has changed"
    assert len(place.applied) == 2


def test_only_settings_that_can_change_do(place: Place) -> None:
    """The others are named each time, until a restart."""
    place.config = replace(DEFAULTS, log_slow=1.0, port=2)
    line = "a restart is needed for: port"
    assert place.reloader.reload() == f"changed: log_slow; {line}"
    assert place.applied == [replace(DEFAULTS, log_slow=1.0)]
    assert place.reloader.reload() == f"nothing has changed; {line}"
    place.config = DEFAULTS
    assert place.reloader.reload() == "changed: log_slow"
    assert place.applied[1:] == [DEFAULTS]
    assert place.reloader.reload() == "nothing has changed"


def test_wrong_settings_change_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged and raised."""
    place.config = replace(DEFAULTS, log_slow=1.0, port=0)
    with pytest.raises(ConfigError, match="wrong"):
        place.reloader.reload()
    assert caplog.messages == ["config.rejected error='wrong'"]
    assert place.applied == []


def test_settings_that_were_read_earlier_do_not_return(place: Place) -> None:
    """A reload by a signal reads, then one by POST reads and takes effect."""
    place.config = replace(DEFAULTS, read_token="x" * 3)
    earlier = place.reloader.read()
    place.config = replace(DEFAULTS, read_token="y" * 3)
    assert place.reloader.reload() == "changed: read_token"
    assert place.reloader.apply(*earlier) == "reloaded by a later request"
    assert [config.read_token for config in place.applied] == ["yyy"]


@pytest.mark.parametrize(
    ("before", "after"), [("info", "error"), ("error", "debug"), ("info", "info")]
)
def test_change_of_the_level_is_logged(
    place: Place, caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    """If either of both levels shows it; the new level is in effect then."""
    logger = logging.getLogger("volcache")
    for level in (before, after):
        place.config = replace(DEFAULTS, log_level=level)
        caplog.clear()
        place.reloader.reload()
        assert logger.level == logging.getLevelNamesMapping()[level.upper()]
    changed = "" if before == after else "log_level"
    assert caplog.messages == [f"config.reloaded changed={changed!r} restart=''"]
