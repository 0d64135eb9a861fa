"""What the web layer counts adds up."""

from volcache.web.stats import SAMPLE_ONE_IN, RequestStats


def test_fast_hits_are_part_of_requests_hits_and_latencies() -> None:
    """The hot path writes one histogram; readers see everything."""
    stats = RequestStats()
    stats.fast.observe(0, 2000)
    stats.note("GET", "200 OK", 0, 3000)
    stats.disk_hits += 1
    stats.note("GET", "404 Not Found", 0, 3000)
    stats.note("PUT", "200 OK", 0, 9000)
    assert stats.requests() == {("GET", 200): 2, ("GET", 404): 1, ("PUT", 200): 1}
    assert stats.hits() == {"MEMC": 0, "DISK": 2}
    assert stats.latencies()["GET"].count == 3
    assert stats.latencies()["PUT"].total_ns == 9000


def test_methods_nobody_knows_share_one_name() -> None:
    """A client that invents methods must not fill the memory."""
    stats = RequestStats()
    for number in range(100):
        stats.note(f"X{number}", "405 Method Not Allowed", 0, 10)
    assert stats.requests() == {("OTHER", 405): 100}


def test_a_hot_key_stays_among_the_hottest_while_the_table_overflows() -> None:
    """And the table stays bounded."""
    stats = RequestStats()
    for number in range(50_000):
        stats.sample(b"key-%d" % number)
        if number % 10 == 0:
            stats.sample(b"hot")
    assert stats.hottest(1)[0][0] == b"hot"
    assert stats.hottest(1)[0][1] % SAMPLE_ONE_IN == 0
    assert len(stats.sampled) <= 2048


def test_a_table_of_keys_all_as_hot_is_cut_as_well() -> None:
    """Halving alone would keep them all."""
    stats = RequestStats()
    for _ in range(4):
        for number in range(2048):
            stats.sample(b"key-%d" % number)
    for number in range(10):
        stats.sample(b"new-%d" % number)
    assert len(stats.sampled) <= 2048
