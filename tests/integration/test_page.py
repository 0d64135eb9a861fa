"""The page `/-/` in a browser, with numbers that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from support.browser import Scheme, Tab
from support.stats_server import (
    VOLUME_SIZE,
    StatsServer,
    add_errors,
    add_reads,
    empty_stats,
    hot_tier,
    memcache,
    now_seconds,
    two_rings,
    volume,
)

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration, pytest.mark.slow]


class Page(StatsServer):
    """An instance that was just started, and its page."""

    def __init__(self, browser: Browser) -> None:
        """Serve numbers that the test sets."""
        super().__init__(empty_stats())
        self._browser = browser

    def look(self, *, width: int = 1280, scheme: Scheme = "light") -> Tab:
        """Open the page and wait for the first numbers."""
        tab = Tab(self._browser, width=width, scheme=scheme)
        tab.page.goto(f"{self.url}/-/")
        tab.wait_for("link", "Live")
        return tab


@pytest.fixture
def server(browser: Browser) -> Iterator[Page]:
    """Serve the page."""
    with Page(browser) as running:
        yield running


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


def test_empty_instance_is_shown_without_odd_numbers(server: Page) -> None:
    """No division by zero, no error in the browser, no policy violation."""
    tab = server.look()
    tab.wait_for("hit-sub", "no reads yet")
    assert tab.text("verdict").startswith("OK.")
    assert tab.text("hot").startswith("Off.")
    assert tab.page.locator("#volumes-table tbody tr").count() == 4
    assert tab.odd_words() == []
    assert tab.complaints == []


def test_page_under_load_shows_changing_numbers(server: Page) -> None:
    """Ratio, rate, times and the charts change while the page is open."""
    tab = server.look()
    add_reads(server.stats, 750, 250)
    tab.wait_for("hit-big", "75.0 %", is_hasty=False)
    tab.wait_for("requests-sub", "GET p99 130 µs")
    tab.wait_for("disk-sub", "p50 46 µs")
    chart = tab.page.get_attribute("#chart-hits", "aria-label") or ""
    assert "75.0 % to 75.0 %" in chart
    add_reads(server.stats, 9000, 0)
    tab.wait_for("hit-big", "97.5 %", is_hasty=False)
    assert tab.complaints == []


def test_charts_begin_with_the_history_of_the_instance(server: Page) -> None:
    """Half of the reads were misses, half an hour ago."""
    stats, now = server.stats, now_seconds()
    stats["started"] = now - 3600
    for seconds in range(1800, 0, -30):
        add_reads(stats, 50, 50)
        server.history.append({**deepcopy(stats), "now": now - seconds})
    tab = server.look()
    chart = tab.page.get_attribute("#chart-hits", "aria-label") or ""
    assert chart.startswith("Reads by source over 1 h 0 min: disk ")
    assert "50.0 % to 50.0 %" in chart
    assert tab.page.evaluate("document.getElementById('chart-rates').getBBox().width")
    assert tab.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1000])
def test_narrow_window_has_no_horizontal_scrolling(
    server: Page, width: int, scheme: Scheme
) -> None:
    """Even with two rings, a long key, errors and a hot tier that is down."""
    server.stats = ringed_stats()
    add_errors(server.stats, "write", 3)
    tab = server.look(width=width, scheme=scheme)
    tab.page.evaluate("document.getElementById('volumes').open = true")
    assert not tab.is_scrolled_sideways()
    for tile in tab.page.locator(".tiles > div").all():
        assert tile.evaluate("tile => tile.scrollWidth <= tile.clientWidth")
    table = tab.page.locator("#volumes-table")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    row = table.locator("tbody tr").nth(4)
    assert ("reclaiming, 50.0 % done" in row.inner_text()) is True
    head = "cell => getComputedStyle(cell, '::before').content"
    shown = row.locator("td").first.evaluate(head)
    assert shown == ('"Ring"' if width < 900 else "none")


def test_memcached_that_is_down_is_reported(server: Page) -> None:
    """At the top and in its card, until it is up again."""
    server.stats["hot"] = hot_tier(is_up=True)
    tab = server.look()
    assert tab.text("hot").startswith("Up: 127.0.0.1:11211")
    server.stats["hot"] = hot_tier(is_up=False)
    tab.wait_for("hot", "Down: 127.0.0.1:11211")
    assert tab.text("verdict") == (
        "Problems: memcached is down at 127.0.0.1:11211: its keys are read from the disk."
    )
    server.stats["hot"]["servers"][0]["up"] = True
    tab.wait_for("hot", "Up: 127.0.0.1:11211")
    assert "is down" not in tab.text("verdict")


def test_errors_just_before_the_page_was_opened_are_problems(server: Page) -> None:
    """The instance knows when they were; old ones are notes until there are new ones."""
    server.stats["started"] -= 7200
    add_errors(server.stats, "damaged", 3, seconds_ago=3600)
    tab = server.look()
    words = "Notes: damaged records: 3 since start, the last at "
    assert tab.text("verdict").startswith(words)
    assert ": [Errno 5] Input/output error" in tab.text("verdict")
    add_errors(server.stats, "write", 2, seconds_ago=20)
    assert (
        server.look()
        .text("verdict")
        .startswith("Problems: write errors: 2 since start, the last at ")
    )
    add_errors(server.stats, "damaged", 1)
    tab.wait_for("verdict", "damaged records: 4 since start, the last at ")
    assert tab.text("verdict").startswith("Problems: ")


def test_refused_keys_of_other_instances_are_one_note(server: Page) -> None:
    """They are no errors, and in no other card."""
    requests = server.stats["requests"]
    requests["misdirected"] = {"read": 3, "write": 4}
    requests["others"] = [{"owner": "10.0.0.3:1234", "last": server.stats["now"]}]
    tab = server.look()
    assert tab.text("verdict") == (
        "Notes: keys of 10.0.0.3:1234 are refused here (expected while it is down)."
    )
    assert tab.text("errors").startswith("None since start")
    requests["others"].append({"owner": "b:1", "last": server.stats["now"] - 9})
    words = "10.0.0.3:1234, b:1 are refused here (expected while they are down)."
    tab.wait_for("verdict", f"Notes: keys of {words}")


def test_errors_without_a_time_are_problems_if_all_are_recent(server: Page) -> None:
    """Then the instance was started lately; later, what is new since the first poll."""
    row: dict[str, Any] = {"method": "GET", "status": 500, "count": 2}
    server.stats["requests"]["by"] = [row]
    words = "Problems: responses 500: 2 since start at "
    assert server.look().text("verdict").startswith(words)
    server.stats["started"] -= 7200
    tab = server.look()
    assert tab.text("verdict") == "Notes: responses 500: 2 since start."
    row["count"] += 1
    tab.wait_for("verdict", "Problems: responses 500: 1 more since ")


def test_disk_that_is_read_only_or_too_small_is_reported(server: Page) -> None:
    """At the top, with what the disk has; the room left is that of the disk."""
    store = server.stats["store"]
    store["disk"] = {
        "state": None,
        "free_bytes": VOLUME_SIZE,
        "total_bytes": 8 * VOLUME_SIZE,
        "volumes": 2,
        "limited": True,
    }
    tab = server.look()
    assert tab.text("verdict").startswith("Notes: the disk has room for 2 of 4 volumes")
    assert "2.00 GiB left" in tab.text("room-sub")
    assert "Free on the disk\n1.00 GiB of 8.00 GiB" in tab.text("process")
    store["disk"]["state"] = "full"
    tab.wait_for(
        "verdict", "Problems: the disk is full, nothing can be stored: 1.00 GiB"
    )
    store["disk"]["state"] = "read-only"
    tab.wait_for("verdict", "Problems: the disk is read-only, nothing can be stored")


def test_empty_volume_is_not_written_although_its_file_is_short(server: Page) -> None:
    """There was no disk space for its file: it has only its header."""
    server.stats["store"]["volumes"][0] |= {"size": 64, "used_bytes": 64}
    tab = server.look()
    assert tab.text("active-sub").startswith("0.0 % written, sequence number 1")
    assert ", 0.0 % written" in (tab.page.get_attribute("#ring", "aria-label") or "")


def test_page_survives_a_restart_of_the_instance(server: Page) -> None:
    """It reports it, keeps the last numbers, and starts from 0 with the counters."""
    add_reads(server.stats, 500, 500)
    tab = server.look()
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


def test_page_with_a_bad_response_reports_it(server: Page) -> None:
    """And the page keeps polling."""
    tab = server.look()
    for answer, words in (
        ((503, b"busy"), "status 503"),
        ((200, b'{"now": 17'), "the response is incomplete or not JSON"),
        ((200, b'{"now": 17}'), "the response is not understood"),
    ):
        server.answer = answer
        tab.wait_for("as-of", words)
        server.answer = None
        tab.wait_for("link", "Live")


def test_volume_that_is_reclaimed_next_is_named(server: Page) -> None:
    """As the instance says; the page shows the sequence numbers of all volumes."""
    server.stats = busy_stats()
    tab = server.look()
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


def test_rings_and_eviction_are_shown(server: Page) -> None:
    """The ring of each volume as a colour and in words, and what is being reclaimed."""
    server.stats = ringed_stats()
    server.stats["rings"] |= {"write_amplification": 1.2345, "gained_hits_ratio": 0.031}
    server.stats["rings"]["dropped"]["damaged"] = 2
    tab = server.look()
    assert tab.text("eviction") == (
        "Eviction: frequency. 1.23 bytes were written for each byte stored; by estimate,"
        " 3.1 % of GETs are hits more than with fifo. Volume 4 (probation) is being"
        " reclaimed, 50.0 % done."
    )
    for identity, words in {
        "verdict": "damaged records: 5 since start",  # Reads have found three of them.
        "active-title": "Active volumes",
        "active-big": "3, 5 of 8",
        "active-sub": "main 50.0 % written, probation 25.0 % written;",
        "room-sub": "then volume 4 (probation, 1 h 0 min old) is reclaimed",
    }.items():
        assert words in tab.text(identity)
    rings = tab.text("rings").split("\n")
    assert rings[0] == "Ring main"
    assert rings[1].startswith("5 volumes, 3.31 GiB live")
    assert rings[2] == "Ring probation"
    assert rings[3].startswith("2 volumes, 1.08 GiB live")
    assert "up to 1 h 0 min old" in rings[3]
    assert tab.page.locator("#ring .probation-fill").count() == 2
    assert tab.page.locator("#ring .pointer").count() == 2
    assert tab.page.is_visible("#probation-name")
    label = tab.page.get_attribute("#ring", "aria-label") or ""
    assert "volume 5 is active in ring probation, 25.0 % written" in label
    assert "volume 4 is being reclaimed" in label
    table = tab.page.locator("#volumes-table")
    assert table.locator("thead").inner_text().split("\t")[:3] == [
        *("Volume", "Ring", "State")
    ]
    rows = [row.split("\t") for row in table.locator("tbody tr").all_inner_texts()]
    assert [row[:3] for row in rows[3:7]] == [
        ["3", "main", "active"],
        ["4", "probation", "reclaiming, 50.0 % done"],
        ["5", "probation", "active"],
        ["6", "\N{EN DASH}", "empty"],
    ]
    for gain, words in (
        (None, "the gain over fifo is not known yet"),
        (-0.0123, "by estimate, 1.2 % of GETs are hits less than with fifo"),
    ):
        server.stats["rings"]["gained_hits_ratio"] = gain
        tab.wait_for("eviction", words)
    assert tab.complaints == []


def test_one_ring_is_shown_without_parts_about_rings(server: Page) -> None:
    """With fifo there is a sentence about it, and nothing is empty."""
    server.stats = busy_stats()
    tab = server.look()
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


def test_many_volumes_share_arcs(server: Page) -> None:
    """A thousand volumes are shown as at most 72 arcs."""
    server.stats = empty_stats(volumes=1000)
    tab = server.look()
    assert 0 < tab.page.locator("#ring .slot").count() <= 72
    assert "Each arc is 14 volumes" in tab.text("ring-note")


def test_table_of_very_many_volumes_is_shown_in_parts(server: Page) -> None:
    """And the list of volumes is not asked for at each poll."""
    server.stats = empty_stats(volumes=8000)
    tab = server.look()
    assert not tab.page.is_visible("#volumes-table")
    tab.page.click("#volumes summary")
    expect(tab.page.locator("#volumes-table tbody tr")).to_have_count(100)
    assert tab.text("pager-text").startswith("1 to 100 of 8,000: 1 active, 7,999 empty")
    tab.page.fill("#pager-volume", "7950")
    tab.page.press("#pager-volume", "Enter")
    assert tab.text("pager-text").startswith("7,901 to 8,000 of 8,000")
    assert tab.page.is_disabled("#pager-after")
    tab.page.click("#pager-before")
    assert tab.text("pager-text").startswith("7,801 to 7,900 of 8,000")

    store = server.stats["store"]
    store["active"]["write_position"] = VOLUME_SIZE // 4
    tab.wait_for("active-sub", "25.0 % written")
    assert server.asked[1:3] == ["/-/stats", "/-/history"]
    assert set(server.asked[3:]) == {"/-/stats?volumes=0"}
    assert tab.complaints == []


# --- The memcached protocol ----------------------------------------------------------


def test_memcached_protocol_that_is_off_is_not_shown(server: Page) -> None:
    """Neither a card nor a chart, also if the instance is too old to have it."""
    del server.stats["memcache"]
    tab = server.look()
    for identity in ("memcache-card", "figure-commands"):
        assert tab.page.locator(f"#{identity}").is_hidden()
    assert "memcached protocol" not in tab.text("requests-sub")
    assert tab.complaints == []


@pytest.mark.parametrize("width", [360, 1280])
def test_memcached_protocol_has_a_card_and_a_chart(server: Page, width: int) -> None:
    """Its commands are part of the figures at the top; `failed` is an error."""
    server.stats["memcache"] = memcache()
    tab = server.look(width=width)
    tab.wait_for("memcache", "no reads")
    assert tab.odd_words() == []
    add_reads(server.stats, 100, 0)
    server.stats["memcache"] = memcache(hits=200, misses=100, stored=50)
    tab.wait_for("memcache", "66.7 % of 300", is_hasty=False)
    shown = tab.text("memcache")
    assert "130 µs" in shown
    assert "3 open, 12 accepted" in shown
    assert "hit" in shown
    assert tab.text("hit-big") == "75.0 %"  # (100 + 200) of (100 + 300).
    assert "/s HTTP, " in tab.text("requests-sub")
    chart = tab.page.get_attribute("#chart-commands", "aria-label") or ""
    assert "get 0/s now" not in chart
    assert tab.text("verdict").startswith("OK.")
    row = {"command": "set", "result": "failed", "count": 3}
    server.stats["memcache"]["by"].append(row)
    tab.wait_for("errors", "Commands failed")
    assert "commands failed: 3" in tab.text("verdict")
    assert not tab.is_scrolled_sideways()
    assert tab.complaints == []
