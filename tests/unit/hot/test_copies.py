"""front/copies.c: when a key is hot, and how its items are named."""

from __future__ import annotations

from support.tables import rows
from support.tiers import make_keys


@rows(1, 2, 3, 10)
def test_nth_read_makes_a_key_hot(count: int) -> None:
    """Not the read before; afterwards the count starts at 0."""
    keys = make_keys(reads=count)

    for _ in range(3):
        reads = [keys.count_read(b"k") for _ in range(count)]
        assert reads == [False] * (count - 1) + [True]


def test_count_read_outside_of_the_window_makes_no_key_hot() -> None:
    """The window includes its last millisecond, and moves with each read."""
    keys = make_keys()
    # At 60.001 s, the first is too old; 30, 60.001 and 90 are three in 60 s.
    times = [0, 30_000, 60_001, 90_000]
    assert [keys.count_read(b"k", at) for at in times] == [False] * 3 + [True]
    times = [at * 31_000 for at in range(20)]
    assert not any(keys.count_read(b"k", at) for at in times)
    assert keys.count_read(b"k", times[-2] + 60_000)


def test_count_read_of_one_key_makes_no_other_hot() -> None:
    """Reads of one key do not make another key hot."""
    keys = make_keys(reads=2)
    assert [keys.count_read(key) for key in (b"a", b"b", b"", b"a")] == [
        *[False] * 3,
        True,
    ]


def test_count_read_of_many_keys_forgets_the_oldest() -> None:
    """The number of counters is bounded."""
    keys = make_keys(counted=2)
    for key in (b"a", b"b", b"a", b"c"):
        assert not keys.count_read(key)
    assert keys.count_read(b"a")
    assert not keys.count_read(b"b")


def test_ask_first_above_the_limit_forgets_the_oldest() -> None:
    """The number of these keys is bounded; the copy stays valid."""
    keys = make_keys(first=2)
    for key in (b"a", b"b", b"c"):
        keys.promote(key)
        assert not keys.is_first(key)
        keys.ask_first(key, is_first=True)
        keys.ask_first(key, is_first=True)
    assert [keys.is_first(key) for key in (b"a", b"b", b"c")] == [False, True, True]
    assert keys.may_hold(b"a")
    keys.ask_first(b"b", is_first=False)
    keys.invalidate(b"c")
    assert keys.first == 0
    keys.ask_first(b"c", is_first=True)
    assert not keys.is_first(b"c")


EPOCH = bytes(range(16))  # The key of the test vectors of SipHash.
# The hash and the names of the first two versions of each, by SipHash in Python, which
# gave the vectors of its authors.
ITEMS = {
    b"": (
        "abac0158050fc4dc",
        "72c1178412f30ad4cad3032bdb62c8d4",
        "6c8203ee3c7613356da75939daa26958",
    ),
    b"a key that has more than one word": (
        "f970a9f750759536",
        "44315bbcf2ce8ff0d98471dd3a689f08",
        "0e7cb72e86a76c93d10c07b524e8d19b",
    ),
}


def test_name_of_an_item_is_as_documented() -> None:
    """These are in HOT.txt and in memcached, and must not change with a version."""
    keys = make_keys()
    keys.begin_epoch(EPOCH)
    for key in ITEMS:
        keys.promote(key)
    hashes = [(int(hash_, 16), 1) for hash_, *_ in ITEMS.values()]
    assert keys.entries() == (EPOCH, hashes)
    for key, (_, first, second) in ITEMS.items():
        assert keys.name(key).hex() == first
        keys.invalidate(key)
        assert keys.name(key).hex() == second
