"""The samples that Prometheus would read from a text of metrics."""

from __future__ import annotations

from prometheus_client.parser import (  # noqa: TID251 - The parser of the library.
    text_string_to_metric_families,
)


def samples_of(text: str) -> dict[str, float]:
    """Return all samples, named as Prometheus shows them; none may occur twice."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found
            found[name] = sample.value
    return found


def total(samples: dict[str, float], name: str) -> float:
    """Return the sum over all labels of a metric."""
    return sum(v for k, v in samples.items() if k.partition("{")[0] == name)
