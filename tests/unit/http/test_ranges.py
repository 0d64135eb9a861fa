"""Several ranges of bytes in one request, as RFC 9110 section 14 defines them."""

from __future__ import annotations

import random
from email.parser import BytesParser
from typing import Final

import pytest

from support.fake_cache import FakeCache
from support.wsgi_client import Answer, Client

# Long enough for all parts with their headers.
VALUE: Final = bytes(range(256)) + b"\r\n--" + bytes(16_000)
LENGTH: Final = len(VALUE)


@pytest.fixture
def client() -> Client:
    """Return a client of a cache with one value."""
    cache = FakeCache()
    cache.put(b"key", VALUE, content_type=b"text/x; a=\xe9", content_encoding=b"br")
    return Client(cache)


def parts_of(answer: Answer) -> list[tuple[str, str, bytes]]:
    """Return content type, range and bytes of each part, read by a library."""
    assert answer.status == "206 Partial Content"
    assert answer.headers["Content-Length"] == str(len(answer.body))
    assert "Content-Range" not in answer.headers
    head = f"Content-Type: {answer.headers['Content-Type']}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + answer.body)
    assert message.get_content_type() == "multipart/byteranges"
    assert not message.defects
    boundary = f"\r\n--{message.get_boundary()}".encode()
    found = []
    for piece in answer.body.split(boundary)[1:-1]:
        lines, _, body = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        headers = dict(
            line.split(": ", 1) for line in lines.decode("latin-1").split("\r\n")
        )
        assert set(headers) == {"Content-Type", "Content-Range"}
        found.append((headers["Content-Type"], headers["Content-Range"], body))
    assert answer.body.endswith(boundary + b"--\r\n")
    assert len(message.get_payload()) == len(found)
    return found


def test_get_with_random_ranges_returns_parts_or_the_whole_value(
    client: Client,
) -> None:
    """Compared with what the text of the header says."""
    dice = random.Random(1)  # noqa: S311 - Not a secret.
    kinds = set()
    for _ in range(1000):
        ranges = [
            sorted(dice.choices(range(LENGTH), k=2)) for _ in range(dice.randint(2, 5))
        ]
        wanted = [(first, last) for first, last in ranges]
        text = ",".join(f"{first}-{last}" for first, last in wanted)
        answer = client.ask("GET", HTTP_RANGE=f"bytes={text}")
        covered = [at for first, last in wanted for at in range(first, last + 1)]
        if len(covered) > LENGTH - 1000:
            continue  # With their headers, they may be longer than the value.
        is_apart = len(covered) == len(set(covered))
        kinds.add(is_apart)
        if is_apart:
            found = [body for _, _, body in parts_of(answer)]
            assert found == [VALUE[first : last + 1] for first, last in wanted]
        else:
            assert (answer.status, answer.body) == ("200 OK", VALUE)
    assert kinds == {True, False}


def test_get_with_parts_longer_than_the_value_returns_the_whole_value(
    client: Client,
) -> None:
    """From the first length at which they are shorter: all numbers have three digits."""
    lengths = {}
    for length in range(100, 400):
        client.cache.put(b"key", VALUE[:length])
        answer = client.ask("GET", HTTP_RANGE="bytes=0-1,3-4")
        lengths[length] = len(answer.body)
        assert (answer.status == "200 OK") == (len(answer.body) == length)
    part = lengths[399]
    whole = sum(length for length in lengths if length <= part)
    assert client.app.stats.bytes_out == whole + 4 * (399 - part)
    assert lengths == {length: min(length, part) for length in range(100, 400)}
