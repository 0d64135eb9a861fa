"""
The settings: one table, the only place that knows names, defaults and ranges.

Reading them is `config.py`'s; what kinds of setting there are is `setting.py`'s.
"""

from __future__ import annotations

from typing import Final

from volcache.setting import (
    AddressSetting,
    ChoiceSetting,
    FlagSetting,
    HostSetting,
    IntegerSetting,
    NumberSetting,
    ServersSetting,
    Setting,
    TextSetting,
)

TTL_MAX: Final = 2**31  # Seconds, 68 years: the longest time HTTP has a number for.

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

SETTINGS: Final[tuple[Setting, ...]] = (
    TextSetting(
        name="mount_point",
        default="data",
        text="The directory that holds the files; created when missing.",
        empty=False,
    ),
    IntegerSetting(
        name="volume_size",
        default=GIB,
        text="Size of one volume file; taken from the disk when it is first written.",
        low=MIB,
        high=TIB,
        unit="bytes",
    ),
    IntegerSetting(
        name="volume_num",
        default=10,
        text="Number of volumes; when the last one is full the oldest is reused.",
        low=2,
        high=65535,
    ),
    AddressSetting(
        name="ip",
        default="127.0.0.1",
        text="The address to listen on.",
    ),
    IntegerSetting(
        name="port",
        default=1234,
        text="The TCP port to listen on; 0 takes any free one.",
        low=0,
        high=65535,
    ),
    NumberSetting(
        name="idle_timeout",
        default=0.0,
        text="Closes connections on which nothing has moved for so long; 0 = never.",
        low=0,
        high=86400,
        unit="seconds",
    ),
    ChoiceSetting(
        name="log_level",
        default="info",
        text="The least important kind of event that is logged.",
        choices=("debug", "info", "warning", "error"),
    ),
    TextSetting(
        name="log_file",
        default="",
        text="The file that log lines are appended to; empty means standard error.",
    ),
    ChoiceSetting(
        name="log_format",
        default="text",
        text="How a log line is written: to be read, or one JSON object each.",
        choices=("text", "json"),
    ),
    TextSetting(
        name="log_access",
        default="",
        text="The file that a line for each request is appended to; empty means none.",
    ),
    NumberSetting(
        name="log_slow",
        default=0.1,
        text="Requests that take longer are logged, with where the time went; 0 = none.",
        low=0,
        high=3600,
        unit="seconds",
    ),
    ChoiceSetting(
        name="sync_mode",
        default="periodic",
        text="When stored files are forced to the disk.",
        choices=("none", "periodic", "always"),
    ),
    NumberSetting(
        name="sync_interval",
        default=1.0,
        text='How often files are forced to the disk if sync_mode is "periodic".',
        low=0.01,
        high=3600,
        unit="seconds",
    ),
    IntegerSetting(
        name="max_value_size",
        default=MIB,
        text="The largest file that is taken.",
        low=0,
        high=GIB,
        unit="bytes",
    ),
    IntegerSetting(
        name="max_key_size",
        default=KIB,
        text="The longest key that is taken.",
        low=1,
        high=4096,
        unit="bytes",
    ),
    FlagSetting(
        name="memc_on",
        default=False,
        text="Keep copies of the most wanted files in memcached.",
    ),
    HostSetting(
        name="memc_ip",
        default="127.0.0.1",
        text="Where memcached is; a path is a unix socket, and memc_port is not used.",
    ),
    IntegerSetting(
        name="memc_port",
        default=11211,
        text="The TCP port of memcached.",
        low=1,
        high=65535,
    ),
    ServersSetting(
        name="memc_servers",
        default=(),
        text="Several memcached servers, instead of memc_ip and memc_port.",
    ),
    NumberSetting(
        name="memc_timeout",
        default=0.05,
        text="How long a request waits for memcached at the most.",
        low=0.001,
        high=10,
        unit="seconds",
    ),
    IntegerSetting(
        name="memc_max_value_size",
        default=1_000_000,
        text="The largest file that is copied to memcached, with its header.",
        low=1,
        high=GIB,
        unit="bytes",
    ),
    IntegerSetting(
        name="cache_after_miss_count",
        default=3,
        text="How often a file is read from disk before it is copied to memcached.",
        low=1,
        high=1000,
    ),
    NumberSetting(
        name="cache_after_miss_count_duration",
        default=60.0,
        text="Within what time these reads must come.",
        low=0.001,
        high=86400,
        unit="seconds",
    ),
    TextSetting(
        name="admin_token",
        default="",
        text="The password of POST /-/flush; empty means that nobody may.",
    ),
    IntegerSetting(
        name="default_ttl",
        default=0,
        text="How long a file is kept whose PUT does not say; 0 = for ever.",
        low=0,
        high=TTL_MAX,
        unit="seconds",
    ),
    IntegerSetting(
        name="max_ttl",
        default=0,
        text="How long a file is kept at most, whatever its PUT says; 0 = for ever.",
        low=0,
        high=TTL_MAX,
        unit="seconds",
    ),
)
