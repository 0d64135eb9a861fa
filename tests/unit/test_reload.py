"""reload.py: which settings change, in which order, and what is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from volcache.errors import ConfigError
from volcache.reload import Reloader
from volcache.settings import DEFAULTS, Config


class Place:
    """Where settings are read, and what took effect."""

    def __init__(self, list_: Path) -> None:
        """Begin with a list of this instance alone."""
        self.list = list_
        self.list.write_text("server a:1;")
        self.first = replace(DEFAULTS, ring=(str(self.list),), ring_self="a:1")
        self.config = self.first
        self.applied: list[Config] = []
        self.reloader = Reloader(self.config, self.read)
        self.reloader.start(lambda settings: self.applied.append(settings.config))
        assert self.applied.pop() == self.config

    def read(self) -> Config:
        """Return the settings."""
        if self.config.port == 0:
            raise ConfigError("wrong")
        return self.config

    def reload(self, **changes: object) -> str:
        """Reload with other settings than the first ones."""
        self.config = replace(self.first, **changes)  # type: ignore[arg-type]
        return self.reloader.reload()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield one; the level of the log is restored."""
    logger = logging.getLogger("volcache")
    level = logger.level
    yield Place(tmp_path / "instances.conf")
    logger.setLevel(level)


def test_reload_changes_what_can_change_and_names_the_rest(place: Place) -> None:
    """The others are named each time, until a restart."""
    line = "a restart is needed for: port"
    assert place.reload(log_slow=1.0, port=2) == f"changed: log_slow; {line}"
    assert place.reload(log_slow=1.0, port=2) == f"nothing has changed; {line}"
    assert place.reload() == "changed: log_slow"
    assert place.reload() == "nothing has changed"
    assert place.applied == [replace(place.first, log_slow=1.0), place.first]
    # Other contents of a list are a change, although the setting names the same file.
    place.list.write_text("server a:1; server b:1;")
    assert place.reload() == "changed: ring"
    assert place.reload() == "nothing has changed"
    assert place.reload(ring=()) == "changed: ring"


def test_reload_of_wrong_settings_changes_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged and raised."""
    with pytest.raises(ConfigError, match="wrong"):
        place.reload(log_slow=1.0, port=0)
    assert caplog.messages == ["config.rejected error='wrong'"]
    place.list.write_text("server b:1;")
    with pytest.raises(ConfigError, match="does not have this instance"):
        place.reload()
    assert place.applied == []


def test_change_that_raised_is_made_again_by_the_next_reload(place: Place) -> None:
    """Some parts may have other settings than others until then."""

    def fail(_: object) -> None:
        raise MemoryError

    place.reloader._change = fail
    with pytest.raises(MemoryError):
        place.reload(log_slow=1.0)
    place.reloader._change = lambda settings: place.applied.append(settings.config)
    assert place.reload(log_slow=1.0) == "changed: log_slow"
    assert place.applied == [replace(place.first, log_slow=1.0)]


def test_settings_that_were_read_earlier_do_not_return(place: Place) -> None:
    """A reload by a signal reads, then one by POST reads and takes effect."""
    place.config = replace(place.first, log_slow=1.0)
    earlier = place.reloader.read()
    assert place.reload(log_slow=2.0) == "changed: log_slow"
    assert place.reloader.apply(*earlier) == "reloaded by a later request"
    assert [config.log_slow for config in place.applied] == [2.0]


def test_change_of_the_level_is_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """If either of both levels shows it; the new level is in effect then."""
    logger = logging.getLogger("volcache")
    for before, after in (("info", "error"), ("error", "debug"), ("info", "info")):
        for level in (before, after):
            caplog.clear()
            place.reload(log_level=level)
            assert logger.level == logging.getLevelNamesMapping()[level.upper()]
        changed = "" if before == after else "log_level"
        assert caplog.messages == [f"config.reloaded changed={changed!r} restart=''"]
