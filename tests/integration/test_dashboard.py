"""The page of a cluster in a browser: instances that answer, hang, are down, or lie."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import requests
from playwright.sync_api import Browser

from support.browser import Scheme, Tab
from support.fake_fleet import served
from support.ports import pick_port
from support.process import ServerProcess
from support.stats_server import StatsServer, add_errors, add_reads, empty_stats
from support.waiting import wait_until
from support.wire import Talk

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration, pytest.mark.slow]

MARKUP = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
KEY = "x/<script>alert(1)</script><img/src=x/onerror=alert(1)>"


def states_of(url: str) -> dict[str, str]:
    """Return the state of each instance, as the dashboard knows it."""
    found = requests.get(f"{url}api/cluster", timeout=20).json()
    return {one["name"]: one["state"] for one in found["instances"]}


def look(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    scheme: Scheme = "light",
) -> Tab:
    """Open the page when each instance was asked."""
    wait_until(lambda: "unknown" not in states_of(url).values(), "all instances")
    tab = Tab(browser, width=width, scheme=scheme)
    tab.page.goto(url)
    tab.wait_for("link", "Live")
    return tab


def names_in(tab: Tab) -> list[str]:
    """Return the names of the instances in the table, in their order."""
    return tab.page.locator("tbody th a").all_inner_texts()


def row_of(tab: Tab, address: str) -> str:
    """Return the text of the row of an instance."""
    return tab.page.locator("tbody tr", has_text=address).inner_text()


def address_of(server: StatsServer | ServerProcess) -> str:
    """Return host and port."""
    return urlsplit(server.url).netloc


def follow(tab: Tab, address: str) -> None:
    """Open the page of an instance from the table."""
    tab.page.click(f"tbody >> text={address}")
    tab.page.wait_for_url("**/instances/**")
    tab.wait_for("where", address)


@pytest.fixture
def fleet() -> Iterator[dict[str, str]]:
    """The addresses of a cluster with half of its instances down, by what they are."""
    with ExitStack() as stack:
        found = {"refusing": f"127.0.0.1:{pick_port()}"}
        hung = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        found["hung"] = f"127.0.0.1:{hung.getsockname()[1]}"
        for name in ("wrong", "markup", "failing", "good"):
            server = StatsServer(empty_stats())
            stack.enter_context(server)
            found[name] = address_of(server)
            if name == "wrong":
                server.answer = (200, b"<html>hello</html>")
            if name == "failing":
                add_errors(server.stats, "write", 7, seconds_ago=3)
            if name == "markup":
                server.stats |= {"version": MARKUP, "ready": False, "problem": MARKUP}
                server.stats["store"] |= {"mount_point": MARKUP, "keys": 1e308}
                server.stats["latency"]["GET"]["counts"] = ["x"] * 64
                server.stats["requests"]["by"] = [17, {"method": []}]
        yield found


def test_half_of_the_instances_are_down(
    browser: Browser, fleet: dict[str, str]
) -> None:
    """The worst are first, each with its reason; the browser asks the dashboard only."""
    with served(*fleet.values()) as url:
        tab = look(browser, url)
        assert tab.text("verdict").startswith(
            "Problems: 3 of 6 instances are down, 2 are degraded. "
        )
        assert (tab.text("up-big"), tab.text("up-sub")) == (
            "3 of 6",
            "3 down, 2 degraded",
        )
        assert tab.page.title().startswith("! 3 of 6 up")
        assert names_in(tab)[-1] == fleet["good"]
        assert set(names_in(tab)[:3]) == {
            *(fleet["refusing"], fleet["hung"], fleet["wrong"])
        }
        assert "Connection refused" in row_of(tab, fleet["refusing"])
        assert "no answer within 3 s" in row_of(tab, fleet["hung"])
        assert "the response is not from volcache" in row_of(tab, fleet["wrong"])
        assert "7 write errors, the last" in row_of(tab, fleet["failing"])
        shown = row_of(tab, fleet["markup"])
        assert shown.count(MARKUP) == 1  # The rest is in a title.
        assert tab.page.locator("tbody :is(script, img)").count() == 0
        assert tab.odd_words() == []
        assert tab.complaints == []


def test_page_of_each_instance_is_served_by_the_dashboard(
    browser: Browser, fleet: dict[str, str]
) -> None:
    """The browser asks the dashboard only; a hung instance is not waited for."""
    with served(*fleet.values()) as url:
        tab = look(browser, url)
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        follow(tab, fleet["good"])
        tab.wait_for("link", "Live")
        assert tab.text("verdict").startswith("OK.")
        tab.page.click("text=All instances")
        tab.page.wait_for_url(url)
        tab.wait_for("link", "Live")
        follow(tab, fleet["hung"])
        tab.wait_for("as-of", "status 502: no answer within 3 s")
        assert asked
        assert all(one.startswith(url) for one in asked)
        assert [text for text in tab.complaints if "502" not in text] == []


def own_page(browser: Browser, server: ServerProcess) -> Tab:
    """Open the page of an instance; a key with markup is text there."""
    own = Tab(browser)
    own.page.goto(f"{server.url}/-/")
    own.wait_for("keys", KEY)
    assert own.page.locator("#keys script, #keys img").count() == 0
    assert own.complaints == []
    return own


def test_figures_are_those_of_a_real_instance(browser: Browser, tmp_path: Path) -> None:
    """Also on its own page, with a key of markup; a killed one is down, then up again."""
    settings = {"volume_size": 8 << 20, "volume_num": 4}
    with (
        ServerProcess(tmp_path, settings=settings) as server,
        StatsServer(empty_stats()) as other,
    ):
        address = address_of(server)
        with served(address, address_of(other)) as url:
            tab = look(browser, url)
            assert tab.text("verdict") == "OK: All 2 instances are healthy."
            with Talk(server.port) as client:
                client.exchange("PUT", f"/{quote(KEY)}", b"value")
                for number in range(2000):
                    client.exchange(
                        "GET", f"/{quote(KEY)}" if number % 4 else "/missing"
                    )
            tab.wait_for("hits-big", "75.0 %")
            assert "75.0 %" in row_of(tab, address)
            chart = tab.page.locator("tbody tr svg[role=img]").first
            label = chart.get_attribute("aria-label") or ""
            assert label.startswith("Requests per second over 1 min: ")
            own = own_page(browser, server)
            server.kill()
            tab.wait_for("verdict", "1 of 2 instances is down")
            own.wait_for("link", "Not reachable")
            assert names_in(tab)[0] == address
            server.restart()
            tab.wait_for("verdict", "OK: All 2 instances are healthy.")
            own.wait_for("link", "Live")
            assert "the instance was restarted" in own.text("verdict")
            follow(tab, address)
            tab.wait_for("link", "Live")
            assert tab.complaints == []


@pytest.fixture(scope="module")
def many() -> Iterator[tuple[str, str]]:
    """The URL of the dashboard of 400 instances, of which one answers, and its address."""
    with StatsServer(empty_stats()) as server:
        add_reads(server.stats, 30, 10)
        port = pick_port()
        down = [f"127.0.{i // 200}.{i % 200 + 2}:{port}" for i in range(399)]
        with served(address_of(server), *down) as url:
            wait_until(
                lambda: list(states_of(url).values()).count("down") == 399, "399"
            )
            yield url, address_of(server)


def test_one_of_400_instances_is_found(browser: Browser, many: tuple[str, str]) -> None:
    """By searching, filtering and sorting; with the keyboard alone."""
    url, address = many
    tab = look(browser, url)
    assert tab.text("found") == "400 instances"
    assert len(names_in(tab)) == 100
    tab.page.focus("#more-button")
    tab.page.keyboard.press("Enter")
    assert len(names_in(tab)) == 400
    tab.page.focus("#search")
    tab.page.keyboard.type(address)
    tab.wait_for("found", "1 of 400 instances", is_hasty=False)
    assert names_in(tab) == [address]
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("127.0.1. refused")
    tab.wait_for("found", "199 of 400 instances", is_hasty=False)
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.press("Delete")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("End")  # The option "healthy".
    tab.wait_for("found", "1 of 400 instances", is_hasty=False)
    assert names_in(tab) == [address]
    tab.page.keyboard.press("Home")
    tab.page.focus("thead button >> text=State")
    tab.page.keyboard.press("Enter")
    assert names_in(tab)[0] == address
    sorted_by = tab.page.locator("th[aria-sort=ascending]")
    assert sorted_by.all_inner_texts() == ["State"]
    assert tab.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (800, "dark")])
def test_narrow_window_has_no_horizontal_scrolling(
    browser: Browser,
    fleet: dict[str, str],
    width: int,
    scheme: Scheme,
) -> None:
    """Each instance has its figures below its name; those that are down have none."""
    with served(*fleet.values()) as url:
        tab = look(browser, url, width=width, scheme=scheme)
        assert not tab.is_scrolled_sideways()
        good = tab.page.locator("tbody tr", has_text=fleet["good"])
        assert good.locator("td >> visible=true").count() == 6
        down = tab.page.locator("tbody tr", has_text=fleet["hung"])
        assert down.locator("td >> visible=true").count() == 1
        for tile in tab.page.locator(".tiles > div").all():
            assert tile.evaluate("tile => tile.scrollWidth <= tile.clientWidth")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the dashboard of four machines with ten instances; one is dead."""
    lines = ["[machines]"]
    down: list[dict[str, object]] = []
    with ExitStack() as stack:
        for number in range(1, 5):
            ports = []
            for _ in range(10):
                if number == 3:
                    # Bound without listening: refuses, and nobody else has the port.
                    dead = stack.enter_context(socket.socket())
                    dead.bind(("127.0.0.1", 0))
                    ports.append(dead.getsockname()[1])
                    down.append({"owner": f"127.0.0.1:{ports[-1]}", "last": 2e9})
                else:
                    server = stack.enter_context(StatsServer(empty_stats()))
                    add_reads(server.stats, 30, 10)
                    server.stats["requests"]["others"] = down
                    ports.append(server.port)
            disks = [f'{{ name = "{port}", port = {port} }}' for port in ports]
            address = f'address = "127.0.0.1", disks = [{", ".join(disks)}]'
            lines.append(f"cache-{number} = {{ {address} }}")
        file = tmp_path_factory.mktemp("machines") / "inventory.toml"
        file.write_text("\n".join(lines))
        with served(str(file)) as url:
            yield url


@pytest.mark.parametrize(
    ("width", "scheme", "most"),
    [(1400, "light", 1300), (1400, "dark", 1300), (390, "light", 3500)],
)
def test_forty_instances_fit_and_a_dead_machine_is_one_row(
    browser: Browser,
    machines: str,
    width: int,
    scheme: Scheme,
    most: int,
) -> None:
    """One line for each instance in a wide window; machines have their sums."""
    tab = look(browser, machines, width=width, scheme=scheme)
    assert tab.page.locator("tbody tr").count() == 30 + 4
    dead = row_of(tab, "cache-3")
    assert "all 10 instances are down: Connection refused (for " in dead
    verdict = tab.text("verdict")
    assert "cache-3: all 10 instances are down" in verdict
    assert "and 5 more are refused by others (expected while they are down)." in verdict
    assert tab.text("up-sub") == "10 down"
    assert "10 instances" in tab.page.locator("tr.machine >> nth=1").inner_text()
    assert tab.page.evaluate("document.documentElement.scrollHeight") <= most
    assert not tab.is_scrolled_sideways()
    heights = tab.page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.offsetHeight)"
    )
    assert width < 1400 or max(heights) < 25
    tab.page.fill("#search", "cache-3")
    tab.wait_for("found", "10 of 40 instances", is_hasty=False)
    assert tab.page.locator("tbody tr").count() == 1
    assert tab.complaints == []


def test_wrong_list_and_dashboard_that_is_gone_are_reported(
    browser: Browser, tmp_path: Path
) -> None:
    """The last list and the last figures stay."""
    file = tmp_path / "instances.conf"
    with StatsServer(empty_stats()) as server:
        file.write_text(f"server {address_of(server)} weight=3;\n")
        with served(str(file)) as url:
            tab = look(browser, url)
            file.write_text("serve rubbish;\n")
            tab.wait_for("verdict", "list of instances is not up to date")
            assert tab.text("verdict").startswith("Warnings: ")
        tab.wait_for("link", "Dashboard not reachable since")
        assert tab.text("verdict").startswith("Problems: no numbers since")
        assert names_in(tab) == [address_of(server)]
