"""Times to live, from the ordinary to the largest numbers, in both protocols."""

from __future__ import annotations

import re
from typing import Final

import pytest

from support import binary_protocol as wire
from support.binary_protocol import request
from support.memcache_talk import Talk

TEN_YEARS: Final = 10 * 365 * 24 * 60 * 60
FAR: Final = [2**31, 2**32 - 1, 2**32, 2**53, 10**16, 2**63 - 1]
PAST: Final = [-1, -(2**31), -(2**32), -(2**63)]
# As in memcached, no number of 64 bits.
INVALID: Final = [2**63, 2**64, -(2**63) - 1, int("9" * 400), -int("9" * 400)]

BAD_LINE: Final = "CLIENT_ERROR bad command line format"
BAD_EXPTIME: Final = "CLIENT_ERROR invalid exptime argument"
BAD_TOKEN: Final = "CLIENT_ERROR bad token in command line format"  # noqa: S105
BAD_FLAG: Final = "CLIENT_ERROR invalid or duplicate flag"
# Commands that set when the key "a", whose value is "1", expires; what they answer, and
# what they answer if the number is invalid.
CHANGING: Final = [
    ("set a 0 {} 1;1", "STORED", BAD_LINE),
    ("replace a 0 {} 1;1", "STORED", BAD_LINE),
    ("touch a {}", "TOUCHED", BAD_EXPTIME),
    ("gat {} a", "VALUE a 0 1;1;END", BAD_EXPTIME),
    ("mg a T{}", "HD", BAD_TOKEN),
    ("ms a 1 T{};1", "HD", BAD_TOKEN),
    ("ms a 1 MR T{};1", "HD", BAD_TOKEN),
    ("ma a D0 T{}", "HD", BAD_FLAG),
]
# The same, if there is no key "a".
CREATING: Final = [
    ("add a 0 {} 1;1", "STORED", BAD_LINE),
    ("mg a N{}", "HD W", BAD_TOKEN),
    ("ms a 1 ME T{};1", "HD", BAD_TOKEN),
    ("ms a 1 MA N{};1", "HD", BAD_TOKEN),
    ("ms a 1 MP N{};1", "HD", BAD_TOKEN),
    ("ma a N{}", "HD", BAD_FLAG),
]
# Here the number changes nothing: the value does not expire.
KEEPING: Final = [
    ("append a 0 {} 0;", "STORED", BAD_LINE),
    ("prepend a 0 {} 0;", "STORED", BAD_LINE),
    ("mg a R{}", "HD", BAD_TOKEN),
    ("cas a 0 {} 1 1;1", "EXISTS", BAD_LINE),
]


@pytest.mark.parametrize("number", [*FAR, *PAST, *INVALID], ids=lambda n: str(n)[:25])
def test_any_number_is_a_time_to_live(talk: Talk, number: int) -> None:
    """Far away, in the past or an error; what follows in the packet is executed."""
    for form, answer, error in (*CHANGING, *CREATING, *KEEPING):
        has_value = (form, answer, error) not in CREATING
        store = "set a 0 0 1;1;" * has_value
        said = talk.connect().say(f"{store}{form.format(number)};mg a t")
        before = "STORED;" * has_value
        if number in INVALID:
            assert said == f"{before}{error};{'HD t-1' if has_value else 'EN'}", form
        elif (form, answer, error) in KEEPING:
            assert said == f"{before}{answer};HD t-1", form
        elif number in PAST:
            assert said == f"{before}{answer};EN", form
        else:
            # "Z": another client has the right to store it.
            found = re.fullmatch(f"{before}{answer};HD t([0-9]+)( Z)?", said)
            assert found is not None, form
            assert int(found[1]) > TEN_YEARS, form


@pytest.mark.parametrize("number", [2**31, 2**32 - 2, 2**32 - 1], ids=str)
def test_any_number_is_a_time_to_live_in_binary(talk: Talk, number: int) -> None:
    """It has 32 bits there; the largest one stores no initial number."""
    put, count = wire.put_extras(0, number), wire.arithmetic_extras(1, 1, number)
    time = wire.time_extras(number)
    for opcode, extras, has_value in (
        *((wire.SET, put, True), (wire.ADD, put, False), (wire.REPLACE, put, True)),
        *((wire.INCR, count, False), (wire.DECR, count, False)),
        *((one, time, True) for one in (wire.TOUCH, wire.GAT, wire.GATK)),
    ):
        talk.connect()
        if has_value:
            talk.store.put(b"a", b"1")
        value = b"1" if extras is put else b""
        (reply,) = wire.replies(talk.ask(request(opcode, b"a", value, extras=extras)))
        is_created = extras is not count or number < 2**32 - 1
        assert reply.status == (0 if is_created else 1), opcode
        found = talk.store.get(b"a")
        assert (found is not None) == is_created, opcode
        if found is not None:
            assert found.expires_ms - talk.clock.now_ms > TEN_YEARS * 1000, opcode
