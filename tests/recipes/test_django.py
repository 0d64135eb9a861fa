"""Django's cache and sessions, with the settings of the document."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.memcache import MemcacheServer
from support.recipes import run, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

# In a process of its own: Django is configured once in a process.
PROGRAM = """
import sys
from django.conf import settings

code = {}
exec(open("settings.py").read(), code)
settings.configure(**{name: code[name] for name in ("CACHES", "SESSION_ENGINE")})

from django.contrib.sessions.backends.cache import SessionStore
from django.core.cache import cache

values = {"text": "\\xe4", "bytes": bytes(range(256)), "list": [1, {"a": None}], "n": 1}
if sys.argv[1] == "write":
    assert cache.set_many(values, 3600) == []
    assert cache.add("text", "not stored") is False
    assert cache.incr("n", 41) == 42
    assert cache.touch("list", 7200) is True
    cache.set("deleted", 1)
    assert cache.delete("deleted") is True
    session = SessionStore()
    session["user"] = "ann"
    session.create()
    print(session.session_key)
else:
    assert cache.get_many([*values, "deleted"]) == {**values, "n": 42}
    assert cache.get_or_set("made", lambda: "made", 60) == "made"
    assert SessionStore(sys.argv[2])["user"] == "ann"
    print("read")
"""


def test_values_and_sessions_survive_a_kill(tmp_path: Path) -> None:
    """Of every type."""
    pytest.importorskip("django")
    with MemcacheServer(tmp_path / "data") as instance:
        text = snippet("Django", "python")
        text = text.replace("127.0.0.1:11211", instance.memcache_address)
        (tmp_path / "settings.py").write_text(text)
        program: list[str | Path] = [sys.executable, "-c", PROGRAM]
        key = run([*program, "write"], tmp_path).strip()
        instance.kill()
        instance.restart()
        assert run([*program, "read", key], tmp_path).strip() == "read"
