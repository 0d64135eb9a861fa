"""The operator's page in a browser, over numbers that the test sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from support.browser import Tab, a_browser
from support.stats_server import (
    VOLUME_SIZE,
    StatsServer,
    add_reads,
    empty_stats,
    hot_tier,
    volume,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ODD = ("NaN", "undefined", "null", "Infinity", "[object")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests here."""
    with a_browser() as running:
        yield running


@pytest.fixture
def server() -> Iterator[StatsServer]:
    """An instance that was started a moment ago."""
    with StatsServer(empty_stats()) as running:
        yield running


def look(
    browser: Browser,
    server: StatsServer,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
) -> Tab:
    """Open the page and wait for its first numbers."""
    tab = Tab(browser, width=width, scheme=scheme)
    tab.page.goto(f"{server.url}/-/")
    tab.wait_for("link", "Live")
    return tab


def busy_stats() -> dict[str, Any]:
    """Return what an instance says that came round the ring and has trouble."""
    stats = empty_stats(volumes=8)
    store = stats["store"]
    store["volumes"] = [
        volume(i, used=VOLUME_SIZE, dead=VOLUME_SIZE // (i + 2), state="sealed")
        for i in range(8)
    ]
    store["volumes"][3] = volume(3, used=VOLUME_SIZE // 2, state="head")
    store["head"] = {"id": 3, "generation": 1, "write_position": VOLUME_SIZE // 2}
    store["damaged_records"] = 3
    stats["hot"] = hot_tier(is_up=False)
    stats["hottest"] = [{"key": "long/" + "x" * 900, "reads": 640}]
    add_reads(stats, 900, 100)
    return stats


def test_empty_instance_is_shown_in_words(
    browser: Browser, server: StatsServer
) -> None:
    """No share of nothing, no complaint of the browser, no policy broken."""
    tab = look(browser, server)
    tab.wait_for("hit-sub", "nothing has been read yet")
    assert tab.text("verdict").startswith("All is well.")
    assert tab.text("hot").startswith("Off.")
    assert tab.page.locator("#volumes-table tbody tr").count() == 4
    everything = tab.page.content().partition("<script>")[0]
    assert not [word for word in ODD if word in everything]
    assert tab.complaints == []


def test_numbers_follow_the_load(browser: Browser, server: StatsServer) -> None:
    """Ratio, rate, times and the charts' legends change while the page stands open."""
    tab = look(browser, server)
    add_reads(server.stats, 750, 250)
    tab.wait_for("hit-big", "75.0 %", is_hasty=False)
    tab.wait_for("requests-sub", "99 of 100 GETs within 130 µs")
    tab.wait_for("disk-sub", "half within 46 µs")
    chart = tab.page.get_attribute("#chart-hits", "aria-label") or ""
    assert "75.0 % to 75.0 %" in chart
    add_reads(server.stats, 9000, 0)
    tab.wait_for("hit-big", "97.5 %", is_hasty=False)
    assert tab.complaints == []


def test_key_with_markup_stays_text(browser: Browser, server: StatsServer) -> None:
    """It stands there letter by letter, and makes no element."""
    key = "x/<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    server.stats["hottest"] = [{"key": key, "reads": 64}]
    tab = look(browser, server)
    assert tab.page.locator("#keys td").first.text_content() == key
    assert tab.page.locator("#keys script, #keys img").count() == 0
    assert "taken" not in tab.page.title()
    assert tab.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800])
def test_narrow_window_needs_no_scrolling_sideways(
    browser: Browser, server: StatsServer, width: int, scheme: Literal["light", "dark"]
) -> None:
    """Also with a long key, errors and a hot tier that is down."""
    server.stats = busy_stats()
    tab = look(browser, server, width=width, scheme=scheme)
    tab.page.evaluate("document.getElementById('volumes').open = true")
    assert not tab.is_scrolled_sideways()


def test_figures_stay_in_their_tiles(browser: Browser, server: StatsServer) -> None:
    """Also on a phone, and with as many volumes as make a number long."""
    server.stats = empty_stats(volumes=1000)
    tab = look(browser, server, width=360)
    assert tab.text("cycle-big") == "volume 0 of 1,000"
    tiles = tab.page.locator(".tiles > div")
    assert tiles.count() == 5
    for tile in tiles.all():
        assert tile.evaluate("tile => tile.scrollWidth <= tile.clientWidth")


def test_hot_tier_that_is_down_is_named_in_words(
    browser: Browser, server: StatsServer
) -> None:
    """At the top and in its own part; and its coming back is."""
    server.stats["hot"] = hot_tier(is_up=True)
    tab = look(browser, server)
    assert tab.text("hot").startswith("Up: 127.0.0.1:11211")
    server.stats["hot"] = hot_tier(is_up=False)
    tab.wait_for("hot", "Down: 127.0.0.1:11211")
    assert tab.text("verdict") == (
        "Look here: memcached is down at 127.0.0.1:11211: its files come from the disk"
        " meanwhile."
    )
    server.stats["hot"]["servers"][0]["up"] = True
    tab.wait_for("hot", "Up: 127.0.0.1:11211")
    assert "is down" not in tab.text("verdict")


def test_errors_that_grow_are_told_from_old_ones(
    browser: Browser, server: StatsServer
) -> None:
    """What was there before the page was opened is a remark; what comes is a warning."""
    server.stats["store"]["damaged_records"] = 3
    tab = look(browser, server)
    assert tab.text("verdict").startswith("Good now, but: damaged records: 3 since")
    server.stats["store"]["read_errors"] = 2
    tab.wait_for("verdict", "Look here: reads that failed: 2 more since")


def test_page_survives_that_the_instance_is_gone_and_restarted(
    browser: Browser, server: StatsServer
) -> None:
    """It says so, keeps what it knew, and counts anew when the counters do."""
    add_reads(server.stats, 500, 500)
    tab = look(browser, server)
    tab.wait_for("hit-big", "50.0 %")
    server.stop()
    tab.wait_for("link", "Not reachable since")
    assert tab.text("verdict").startswith(
        "Look here: the instance has given no numbers"
    )
    assert "; all below is as it was at " in tab.text("verdict")
    assert tab.text("hit-big") == "50.0 %"
    tab.page.wait_for_function(
        "() => [...document.querySelectorAll('main > *')]"
        ".every(e => getComputedStyle(e).opacity === (e.id === 'verdict' ? '1' : '0.55'))"
    )
    assert tab.page.locator("main").evaluate("e => getComputedStyle(e).opacity") == "1"
    server.stats = empty_stats()
    add_reads(server.stats, 30, 10)
    server.start()
    tab.wait_for("link", "Live")
    assert tab.text("hit-big") == "75.0 %"
    assert "the instance was started again" in tab.text("verdict")
    assert "-" not in tab.text("requests-big")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, b"busy"), "it answers 503"),
        ((200, b'{"now": 17'), "its answer is cut off or not JSON"),
        ((200, b'{"now": 17}'), "its answer is not understood"),
    ],
)
def test_answer_that_cannot_be_shown_is_said(
    browser: Browser, server: StatsServer, answer: tuple[int, bytes], words: str
) -> None:
    """And the page goes on asking."""
    tab = look(browser, server)
    server.answer = answer
    tab.wait_for("as-of", words)
    server.answer = None
    tab.wait_for("link", "Live")


def test_many_volumes_share_arcs(browser: Browser, server: StatsServer) -> None:
    """A thousand volumes are a ring of at most 72 arcs, and folded rows of a table."""
    server.stats = empty_stats(volumes=1000)
    tab = look(browser, server)
    assert 0 < tab.page.locator("#ring .slot").count() <= 72
    assert "Each arc is 14 volumes" in tab.text("ring-note")
