"""The page `/-/` in a browser, with numbers that the test sets."""

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
    two_rings,
    volume,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ODD = ("NaN", "undefined", "null", "Infinity", "[object")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this module."""
    with a_browser() as running:
        yield running


@pytest.fixture
def server() -> Iterator[StatsServer]:
    """An instance that was just started."""
    with StatsServer(empty_stats()) as running:
        yield running


def look(
    browser: Browser,
    server: StatsServer,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
) -> Tab:
    """Open the page and wait for the first numbers."""
    tab = Tab(browser, width=width, scheme=scheme)
    tab.page.goto(f"{server.url}/-/")
    tab.wait_for("link", "Live")
    return tab


def busy_stats() -> dict[str, Any]:
    """Return the stats of an instance that has reclaimed volumes and has problems."""
    stats = empty_stats(volumes=8)
    store = stats["store"]
    store["volumes"] = [
        volume(
            i,
            used=VOLUME_SIZE,
            dead=VOLUME_SIZE // (i + 2),
            state="sealed",
            sequence=i + 9 if i <= 3 else i + 1,
        )
        for i in range(8)
    ]
    store["volumes"][3] = volume(3, used=VOLUME_SIZE // 2, state="active", sequence=12)
    store["next_reclaimed"] = 4
    store["active"] = {"id": 3, "sequence": 12, "write_position": VOLUME_SIZE // 2}
    store["damaged_records"] = 3
    stats["hot"] = hot_tier(is_up=False)
    stats["hottest"] = [{"key": "long/" + "x" * 900, "reads": 640}]
    add_reads(stats, 900, 100)
    return stats


def test_empty_instance_is_shown_without_odd_numbers(
    browser: Browser, server: StatsServer
) -> None:
    """No division by zero, no error in the browser, no policy violation."""
    tab = look(browser, server)
    tab.wait_for("hit-sub", "no reads yet")
    assert tab.text("verdict").startswith("OK.")
    assert tab.text("hot").startswith("Off.")
    assert tab.page.locator("#volumes-table tbody tr").count() == 4
    everything = tab.page.content().partition("<script>")[0]
    assert not [word for word in ODD if word in everything]
    assert tab.complaints == []


def test_numbers_follow_the_load(browser: Browser, server: StatsServer) -> None:
    """Ratio, rate, times and the charts change while the page is open."""
    tab = look(browser, server)
    add_reads(server.stats, 750, 250)
    tab.wait_for("hit-big", "75.0 %", is_hasty=False)
    tab.wait_for("requests-sub", "GET p99 130 µs")
    tab.wait_for("disk-sub", "p50 46 µs")
    chart = tab.page.get_attribute("#chart-hits", "aria-label") or ""
    assert "75.0 % to 75.0 %" in chart
    add_reads(server.stats, 9000, 0)
    tab.wait_for("hit-big", "97.5 %", is_hasty=False)
    assert tab.complaints == []


def test_key_with_markup_stays_text(browser: Browser, server: StatsServer) -> None:
    """It is shown literally and creates no element."""
    key = "x/<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    server.stats["hottest"] = [{"key": key, "reads": 64}]
    tab = look(browser, server)
    assert tab.page.locator("#keys td").first.text_content() == key
    assert tab.page.locator("#keys script, #keys img").count() == 0
    assert "taken" not in tab.page.title()
    assert tab.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800])
def test_narrow_window_has_no_horizontal_scrolling(
    browser: Browser, server: StatsServer, width: int, scheme: Literal["light", "dark"]
) -> None:
    """Even with two rings, a long key, errors and a hot tier that is down."""
    server.stats = ringed_stats()
    tab = look(browser, server, width=width, scheme=scheme)
    tab.page.evaluate("document.getElementById('volumes').open = true")
    assert not tab.is_scrolled_sideways()


def test_figures_fit_their_tiles(browser: Browser, server: StatsServer) -> None:
    """On a phone, and with a long number of volumes."""
    server.stats = empty_stats(volumes=1000)
    tab = look(browser, server, width=360)
    assert tab.text("active-big") == "volume 0 of 1,000"
    tiles = tab.page.locator(".tiles > div")
    assert tiles.count() == 5
    for tile in tiles.all():
        assert tile.evaluate("tile => tile.scrollWidth <= tile.clientWidth")


def test_memcached_that_is_down_is_reported(
    browser: Browser, server: StatsServer
) -> None:
    """At the top and in its card, until it is up again."""
    server.stats["hot"] = hot_tier(is_up=True)
    tab = look(browser, server)
    assert tab.text("hot").startswith("Up: 127.0.0.1:11211")
    server.stats["hot"] = hot_tier(is_up=False)
    tab.wait_for("hot", "Down: 127.0.0.1:11211")
    assert tab.text("verdict") == (
        "Problems: memcached is down at 127.0.0.1:11211: its keys are read from the disk."
    )
    server.stats["hot"]["servers"][0]["up"] = True
    tab.wait_for("hot", "Up: 127.0.0.1:11211")
    assert "is down" not in tab.text("verdict")


def test_new_errors_are_problems_and_old_ones_notes(
    browser: Browser, server: StatsServer
) -> None:
    """Errors before the page was opened are notes; later ones are problems."""
    server.stats["store"]["damaged_records"] = 3
    tab = look(browser, server)
    assert tab.text("verdict").startswith("Notes: damaged records: 3 since start")
    server.stats["store"]["read_errors"] = 2
    tab.wait_for("verdict", "Problems: read errors: 2 more since")


def test_page_survives_a_restart_of_the_instance(
    browser: Browser, server: StatsServer
) -> None:
    """It reports it, keeps the last numbers, and starts from 0 with the counters."""
    add_reads(server.stats, 500, 500)
    tab = look(browser, server)
    tab.wait_for("hit-big", "50.0 %")
    server.stop()
    tab.wait_for("link", "Not reachable since")
    assert tab.text("verdict").startswith("Problems: no numbers since")
    assert "; the numbers below are those of " in tab.text("verdict")
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
    assert "the instance was restarted" in tab.text("verdict")
    assert "-" not in tab.text("requests-big")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, b"busy"), "status 503"),
        ((200, b'{"now": 17'), "the response is incomplete or not JSON"),
        ((200, b'{"now": 17}'), "the response is not understood"),
    ],
)
def test_bad_response_is_reported(
    browser: Browser, server: StatsServer, answer: tuple[int, bytes], words: str
) -> None:
    """And the page keeps polling."""
    tab = look(browser, server)
    server.answer = answer
    tab.wait_for("as-of", words)
    server.answer = None
    tab.wait_for("link", "Live")


def test_volume_that_is_reclaimed_next_is_named(
    browser: Browser, server: StatsServer
) -> None:
    """As the instance says; the page shows the sequence numbers of all volumes."""
    server.stats = busy_stats()
    tab = look(browser, server)
    assert "Volume 4 is reclaimed next." in tab.text("ring-note")
    assert "50.0 % written, sequence number 12;" in tab.text("active-sub")
    table = tab.page.locator("#volumes-table")
    rows = table.locator("tbody tr")
    numbers = [rows.nth(i).locator("td").last.inner_text() for i in range(8)]
    assert numbers == ["9", "10", "11", "12", "5", "6", "7", "8"]
    assert rows.nth(4).inner_text().split("\t")[1] == "sealed, next to be reclaimed"
    assert "Sequence number" in table.locator("thead").inner_text()
    server.stats["store"]["next_reclaimed"] = 5
    tab.wait_for("ring-note", "Volume 5 is reclaimed next.")


def ringed_stats() -> dict[str, Any]:
    """Return the stats of an instance with two rings that reclaims a volume."""
    stats = busy_stats()
    store = stats["store"]
    store["eviction"] = "frequency"
    store["volumes"][4] |= {"ring": "probation", "state": "reclaiming"}
    store["volumes"][5] = volume(
        5, used=VOLUME_SIZE // 4, state="active", sequence=13, ring="probation"
    )
    store["volumes"][6] = volume(6, state="empty")
    stats["rings"] = two_rings(store["volumes"], reclaiming=4)
    return stats


def test_rings_and_eviction_are_shown(browser: Browser, server: StatsServer) -> None:
    """The ring of each volume as a colour and in words, and what is being reclaimed."""
    server.stats = ringed_stats()
    server.stats["rings"] |= {"write_amplification": 1.2345, "gained_hits_ratio": 0.031}
    tab = look(browser, server)
    assert tab.text("eviction") == (
        "Eviction: frequency. 1.23 bytes were written for each byte stored; by estimate,"
        " 3.1 % of GETs are hits more than with fifo. Volume 4 (probation) is being"
        " reclaimed, 50.0 % done."
    )
    rings = tab.text("rings").split("\n")
    assert rings[0] == "Ring main"
    assert rings[1].startswith("5 volumes, 3.31 GiB live")
    assert rings[2] == "Ring probation"
    assert rings[3].startswith("2 volumes, 1.08 GiB live")
    assert "up to 1 h 0 min old" in rings[3]
    assert tab.text("active-title") == "Active volumes"
    assert tab.text("active-big") == "3, 5 of 8"
    assert tab.text("active-sub").startswith(
        "main 50.0 % written, probation 25.0 % written;"
    )
    assert "then volume 4 (probation, 1 h 0 min old) is reclaimed" in tab.text(
        "room-sub"
    )
    assert tab.page.locator("#ring .probation-fill").count() == 2
    assert tab.page.locator("#ring .pointer").count() == 2
    assert tab.page.is_visible("#probation-name")
    label = tab.page.get_attribute("#ring", "aria-label") or ""
    assert "volume 5 is active in ring probation, 25.0 % written" in label
    assert "volume 4 is being reclaimed" in label
    table = tab.page.locator("#volumes-table")
    assert table.locator("thead").inner_text().split("\t")[:3] == [
        *("Volume", "Ring", "State"),
    ]
    rows = [row.split("\t") for row in table.locator("tbody tr").all_inner_texts()]
    assert [row[:3] for row in rows[3:7]] == [
        ["3", "main", "active"],
        ["4", "probation", "reclaiming, 50.0 % done"],
        ["5", "probation", "active"],
        ["6", "\N{EN DASH}", "empty"],
    ]
    assert tab.complaints == []


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (None, "the gain over fifo is not known yet"),
        (-0.0123, "by estimate, 1.2 % of GETs are hits less than with fifo"),
    ],
)
def test_gain_is_described(
    browser: Browser, server: StatsServer, gain: float | None, words: str
) -> None:
    """Until it is known, and if there is none."""
    server.stats = ringed_stats()
    server.stats["rings"]["gained_hits_ratio"] = gain
    assert words in look(browser, server).text("eviction")


def test_one_ring_is_shown_without_parts_about_rings(
    browser: Browser, server: StatsServer
) -> None:
    """With fifo there is a sentence about it, and nothing is empty."""
    server.stats = busy_stats()
    tab = look(browser, server)
    assert tab.text("eviction") == (
        "Eviction: fifo. The oldest volume is overwritten, whether its files are used or"
        " not."
    )
    assert tab.text("rings") == ""
    assert tab.page.locator("#rings > *").count() == 0
    assert not tab.page.is_visible("#probation-name")
    assert tab.page.locator("#ring .probation-fill").count() == 0
    assert "Ring" not in tab.page.locator("#volumes-table thead").inner_text()
    assert tab.text("active-title") == "Active volume"


def test_losses_of_a_reclaim_are_errors(browser: Browser, server: StatsServer) -> None:
    """Like those of a read."""
    server.stats = ringed_stats()
    server.stats["rings"]["dropped"]["damaged"] = 2
    tab = look(browser, server)
    assert "damaged records: 5 since start" in tab.text("verdict")


def test_many_volumes_share_arcs(browser: Browser, server: StatsServer) -> None:
    """A thousand volumes are shown as at most 72 arcs."""
    server.stats = empty_stats(volumes=1000)
    tab = look(browser, server)
    assert 0 < tab.page.locator("#ring .slot").count() <= 72
    assert "Each arc is 14 volumes" in tab.text("ring-note")
