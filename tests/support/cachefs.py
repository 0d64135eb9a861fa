"""Writes a data folder as CacheFS does, and knows which values its files have."""

from __future__ import annotations

from pathlib import Path


class CacheFs:
    """A writer with so many volumes of a size; see `volcache.cli.sources` for the form."""

    def __init__(self, folder: Path, *, volumes: int, size: int) -> None:
        """Begin with volume 0."""
        self._folder, self._volumes, self._size = folder, volumes, size
        (folder / "data").mkdir(parents=True)
        (folder / "index").mkdir()
        self._places: dict[bytes, tuple[int, int, int]] = {}
        # The number of the volume and the value, as the files have it.
        self.live: dict[bytes, tuple[int, bytes]] = {}
        self._active, self._data, self._queue = 0, b"", list[bytes]()
        self._write_meta()

    def put(self, key: bytes, value: bytes) -> None:
        """Append a record; the next volume is begun when this one is full."""
        self._places[key] = self._active, len(self._data), len(key) + len(value)
        self._queue.append(key)
        self._data += key + value
        if len(self._data) >= self._size:
            self._rotate()

    def delete(self, key: bytes) -> None:
        """Forget a key; one of an older volume gets a line in its index."""
        number, _, _ = self._places.pop(key)
        if number != self._active:
            with self._index(number).open("ab") as file:
                file.write(b"\n%b 0 0 0" % key)
            del self.live[key]

    def __contains__(self, key: bytes) -> bool:
        """Whether a key has a value."""
        return key in self._places

    def _rotate(self) -> None:
        places = [(key, self._places.get(key)) for key in self._queue]
        lines = [b"%b %d %d" % (key, *place[1:]) for key, place in places if place]
        self._index(self._active).write_bytes(b"\n".join(lines))
        (self._folder / "data" / str(self._active)).write_bytes(self._data)
        for key, place in places:
            if place:
                value = self._data[place[1] : place[1] + place[2]].removeprefix(key)
                self.live[key] = self._active, value
        self._active = (self._active + 1) % self._volumes
        for key, place in [*self._places.items()]:
            if place[0] == self._active:
                del self._places[key]
        self.live = {k: v for k, v in self.live.items() if v[0] != self._active}
        self._index(self._active).unlink(missing_ok=True)
        self._data, self._queue = b"", []
        self._write_meta()

    def _index(self, number: int) -> Path:
        return self._folder / "index" / str(number)

    def _write_meta(self) -> None:
        (self._folder / "META.txt").write_text(str(self._active))
