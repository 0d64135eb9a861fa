"""The meta commands: what is sent and what is answered."""

from __future__ import annotations

from itertools import product

from support.memcache_talk import Talk

BAD_FORMAT = "CLIENT_ERROR bad command line format"
BAD_TOKEN = "CLIENT_ERROR bad token in command line format"  # noqa: S105
INVALID = "CLIENT_ERROR invalid or duplicate flag"


def test_what_differs_from_memcached_or_is_rare(talk: Talk) -> None:
    """All else is compared with memcached in tests/property/test_memcache_twins.py."""
    talk.check("""
        > ms a 1 F5;x;mg a s v f c k Oid;mg a v C@0 c;mg a v C5 c
        < HD;VA 1 s1 f5 c@0 ka Oid;x;HD c@0;VA 1 c@0;x
        > ms a 1 T60;x;me a;me b;ms b 1;x;me b;mg a T90 t
        < HD;ME a exp=-60 cas=@0 size=66;EN;HD;ME b exp=-1 cas=@1 size=66;HD t90
        > ms YSBi 1 b k T0;x;mg YSBi b k v;mg YSBi k;me YSBi b;md YSBi b k
        < HD kYSBi b;VA 1 kYSBi b;x;EN kYSBi;ME YSBi exp=-1 cas=@0 size=68;HD kYSBi b
        > ms a 1;x;ma a;ma a C5;mn
        < HD;CLIENT_ERROR cannot increment or decrement non-numeric value;EX;MN
        > mg a q;ms a 1 q;5;ma a C5;ma a q;md a C5;md a q;md a q;mn
        < EX;EX;NF;MN
        > ms a 1 C5 c;x;ms a 1;x;ms a 1 C5;x;ms a 1 C0;x;ms a 1 C@0;y;md a C5;md a C@1 q
        < NF c0;HD;EX;EX;HD;EX
        > ma a N60 J9 C9 v t;ma a v t c;ma a T-1 t c;mg a
        < VA 1 t60;9;VA 2 t60 c@1;10;HD t60 c@1;EN
    """)


def test_bad_lines_are_answered_as_by_memcached(talk: Talk) -> None:
    """The value of a bad "ms" is skipped; errors are answered even if it is quiet."""
    long_key, many = "k" * 251, " k" * 18
    talk.check(f"""
        > mg;mx a;mg a !;mg a O{"o" * 32};mg a{many}
        < ERROR;ERROR;CLIENT_ERROR invalid flag;CLIENT_ERROR opaque token too long
        < CLIENT_ERROR options flags are too long
        > mg a k k;mg a Tx;mg a Cx;mg a Nx
        < CLIENT_ERROR duplicate flag;{BAD_TOKEN};{BAD_TOKEN};{BAD_TOKEN}
        > mg {long_key};ms a;ms a -1;ms a 1 Fx;x;me;mn
        < {BAD_FORMAT};{BAD_FORMAT};{BAD_FORMAT};{BAD_FORMAT};{BAD_FORMAT};MN
        > ms a 1 MX;x;ms a 1 MSS;x;ma a MX
        < CLIENT_ERROR invalid mode for ms M token
        < CLIENT_ERROR incorrect length for M token
        < CLIENT_ERROR invalid mode for ma M token
        > ms !!! 1 b;x;ms a 0 k b;;mn
        < CLIENT_ERROR error decoding key;CLIENT_ERROR error decoding key;MN
        > md a k k;ma a Dx;ms a 1 q;xyz;mn
        < {INVALID};{INVALID};CLIENT_ERROR bad data chunk;ERROR;MN
    """)


def test_flags_that_a_record_cannot_keep_are_refused(talk: Talk) -> None:
    """An answer must not depend on what a restart would forget."""
    lines = ("mg a", "ms a 0", "md a", "ma a")
    for line, flag in product(lines, ("I", "E5")):
        reply = talk.connect().say(f"{line} {flag}" + ";" * line.startswith("ms"))
        assert "invalid" in reply
        assert ";" not in reply
