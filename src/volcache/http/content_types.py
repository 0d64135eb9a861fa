"""
Content types by the suffix of a key, for values stored without a Content-Type.

The table is our own because that of the standard library depends on its version and on
the mime files of the host: two instances must not answer differently.
"""

from __future__ import annotations

from typing import Final

DEFAULT_TYPE: Final = "application/octet-stream"

# Compressed files are returned as they are, so `.gz` has the type gzip, not the type of
# its content with a Content-Encoding.
TYPES: Final[dict[bytes, str]] = {
    b".7z": "application/x-7z-compressed",
    b".avi": "video/x-msvideo",
    b".avif": "image/avif",
    b".bmp": "image/bmp",
    b".bz2": "application/x-bzip2",
    b".css": "text/css",
    b".csv": "text/csv",
    b".gif": "image/gif",
    b".gz": "application/gzip",
    b".htm": "text/html",
    b".html": "text/html",
    b".ico": "image/vnd.microsoft.icon",
    b".jar": "application/java-archive",
    b".jpeg": "image/jpeg",
    b".jpg": "image/jpeg",
    b".js": "text/javascript",
    b".json": "application/json",
    b".m3u8": "application/vnd.apple.mpegurl",
    b".m4a": "audio/mp4",
    b".map": "application/json",
    b".md": "text/markdown",
    b".mjs": "text/javascript",
    b".mov": "video/quicktime",
    b".mp3": "audio/mpeg",
    b".mp4": "video/mp4",
    b".mpd": "application/dash+xml",
    b".oga": "audio/ogg",
    b".ogg": "audio/ogg",
    b".ogv": "video/ogg",
    b".otf": "font/otf",
    b".pbf": "application/x-protobuf",
    b".pdf": "application/pdf",
    b".png": "image/png",
    b".svg": "image/svg+xml",
    b".tar": "application/x-tar",
    b".tgz": "application/gzip",
    b".tif": "image/tiff",
    b".tiff": "image/tiff",
    b".toml": "application/toml",
    b".ts": "video/mp2t",
    b".ttf": "font/ttf",
    b".txt": "text/plain",
    b".wasm": "application/wasm",
    b".wav": "audio/wav",
    b".webm": "video/webm",
    b".webmanifest": "application/manifest+json",
    b".webp": "image/webp",
    b".whl": "application/zip",
    b".woff": "font/woff",
    b".woff2": "font/woff2",
    b".xml": "application/xml",
    b".xz": "application/x-xz",
    b".yaml": "application/yaml",
    b".yml": "application/yaml",
    b".zip": "application/zip",
    b".zst": "application/zstd",
}


def content_type_of(key: bytes, stored: bytes) -> str:
    """
    Return the content type stored with a value, or that of the suffix of its key.

    The suffix is before the first question mark, where a query may begin, or at the end.
    """
    if stored:
        return stored.decode("latin-1")
    path = key.partition(b"?")[0]
    return _type_of(path) or _type_of(key) or DEFAULT_TYPE


def _type_of(name: bytes) -> str | None:
    return TYPES.get(name[name.rfind(b".") :].lower())
