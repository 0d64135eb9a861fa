"""front/copies.c: when a key is hot, and how its items are named."""

from __future__ import annotations

from support.tables import each_row
from support.tiers import make_keys


@each_row("count", [1, 2, 3, 10])
def test_nth_read_makes_a_key_hot(count: int) -> None:
    """Not the read before; afterwards the count starts at 0."""
    keys = make_keys(reads=count)

    for _ in range(3):
        reads = [keys.count_read(b"k") for _ in range(count)]
        assert reads == [False] * (count - 1) + [True]


def test_reads_must_be_within_the_window() -> None:
    """The window includes its last millisecond, and moves with each read."""
    keys = make_keys()
    # At 60.001 s, the first is too old; 30, 60.001 and 90 are three in 60 s.
    times = [0, 30_000, 60_001, 90_000]
    assert [keys.count_read(b"k", at) for at in times] == [False] * 3 + [True]
    times = [at * 31_000 for at in range(20)]
    assert not any(keys.count_read(b"k", at) for at in times)
    assert keys.count_read(b"k", times[-2] + 60_000)


def test_keys_are_counted_separately() -> None:
    """Reads of one key do not make another key hot."""
    keys = make_keys(reads=2)
    assert [keys.count_read(key) for key in (b"a", b"b", b"", b"a")] == [
        *[False] * 3,
        True,
    ]


def test_key_that_was_not_read_for_long_is_forgotten() -> None:
    """The number of counters is bounded."""
    keys = make_keys(counted=2)
    for key in (b"a", b"b", b"a", b"c"):
        assert not keys.count_read(key)
    assert keys.counted == 2
    assert keys.count_read(b"a")
    assert not keys.count_read(b"b")


def test_new_epoch_forgets_all_reads() -> None:
    """No read before a flush counts."""
    keys = make_keys(reads=2)
    keys.count_read(b"k")
    keys.begin_epoch()
    assert keys.counted == 0
    assert not keys.count_read(b"k")
    assert keys.count_read(b"k")


def test_key_promoted_first_is_asked_first_no_longer() -> None:
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
KEYS = [b"", b"a", b"a key that has more than one word"]


def test_items_are_named_as_documented() -> None:
    """By SipHash, whose authors have published test vectors."""
    assert sip_hash(b"", 2, 4, 16).hex() == "a3817f04ba25a8e66df67214c7550293"
    keys = make_keys()
    keys.begin_epoch(EPOCH)
    for key in KEYS:
        keys.promote(key)
    assert keys.entries() == (
        EPOCH,
        [(int.from_bytes(sip_hash(key, 1, 3, 8), "little"), 1) for key in KEYS],
    )
    for key in KEYS:
        digest = sip_hash(key, 2, 4, 16)
        assert keys.name(key) == sip_hash(digest + bytes(8), 2, 4, 16)
        keys.invalidate(key)
        assert keys.name(key) == sip_hash(digest + b"\1" + bytes(7), 2, 4, 16)


def sip_hash(data: bytes, c_rounds: int, d_rounds: int, length: int) -> bytes:
    """Return SipHash of data with 8 or 16 bytes, by its authors' paper."""
    mask = 2**64 - 1
    k0, k1 = (int.from_bytes(EPOCH[at : at + 8], "little") for at in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    v[1] ^= 0xEE if length == 16 else 0

    def mix(a: int, b: int, bits: int) -> None:
        v[a] = (v[a] + v[b]) & mask
        v[b] = ((v[b] << bits) | (v[b] >> (64 - bits))) & mask
        v[b] ^= v[a]

    def turn(a: int) -> None:
        v[a] = ((v[a] << 32) | (v[a] >> 32)) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            mix(0, 1, 13)
            mix(2, 3, 16)
            turn(0)
            mix(0, 3, 21)
            mix(2, 1, 17)
            turn(2)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(c_rounds)
        v[0] ^= word
    found = b""
    for index, change in ((2, 0xEE if length == 16 else 0xFF), (1, 0xDD)):
        v[index] ^= change
        rounds(d_rounds)
        found += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return found[:length]
