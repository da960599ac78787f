"""Parts of a saved split, and how they are read: their split.json has the options for reading.

A part whose ratings are made of several events each is written as its events, so that kinds, times
and ids of events are not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from recsys.data.age import TOLERANCE, iso_time, present
from recsys.data.kinds import Policy
from recsys.data.ratings import Ratings
from recsys.errors import DataError

SPLIT_MANIFEST = "split.json"
SPLIT_FORMAT: Literal["recsys-split"] = "recsys-split"
WEIGHTS: Literal["weight"] = "weight"
"""Column of the weights of interactions in the parts of a split."""
COUNTS = "count"
"""Column of counts of interactions that no one named as weights."""

OF_EVENTS = (
    "event",
    "event_id",
    "event_weights",
    "impressions",
    "half_life",
    "duplicates",
)
"""Options for reading a part that has events."""

_LONGEST = 1 << 20  # size of the largest split.json that is read for one part, in bytes


class PartReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options with which the parts of a split are read as what they are; see `read_ratings`."""

    weight: Literal["weight"] | None = None
    feedback: Literal["grades", "counts"] | None = None
    scale: tuple[float, float] | None = None
    time_format: Literal["s"] | None = None
    as_of: str | None = None
    event: Literal["event"] | None = None
    event_id: Literal["event_id"] | None = None
    event_weights: dict[str, float] | None = None
    impressions: str | None = None
    half_life: float | None = None
    duplicates: Policy | None = None

    @classmethod
    def of(cls, train: Ratings, parts: Sequence[Ratings]) -> PartReading:
        """Return the options for the parts of a split, of which `train` is the training part."""
        weight: Literal["weight"] | None = None
        feedback: Literal["grades", "counts"] | None = "grades"
        if train.implicit:
            is_weighted = train.as_interactions().weighted
            weight = WEIGHTS if is_weighted else None
            feedback = "counts" if train.weighted and not is_weighted else None
        times = [part.timestamps for part in parts]
        newest = [
            int(seconds.max())
            for seconds in times
            if seconds is not None and len(seconds)
        ]
        as_of = None
        if newest and max(newest) > present() + TOLERANCE:  # as `as_of` has allowed
            as_of = iso_time(max(newest))
        return cls(
            weight=weight,
            feedback=feedback,
            scale=train.scale,
            time_format="s" if newest else None,
            as_of=as_of,
        )

    def of_events(self, part: Ratings) -> PartReading:
        """Return the options for a part that is written as its events."""
        log = part.log
        rule = part.rule
        has_values = rule.weighted or log.values is not None
        weights = dict(zip(rule.kinds, rule.weights, strict=True))
        shown = next((kind for kind in weights if weights[kind] == 0), None)
        are_equal = set(weights.values()) <= {1.0}
        return msgspec.structs.replace(
            self,
            weight=self.weight if has_values else None,
            event=None if log.kinds is None else "event",
            event_id=None if log.keys is None else "event_id",
            event_weights=None if are_equal else weights,
            impressions=shown,
            half_life=rule.half_life,
            duplicates=rule.policy,
        )

    @property
    def options(self) -> dict[str, Any]:
        """Options by name, without those that are not set."""
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if value
        }


class _Description(msgspec.Struct):
    """Contents of split.json that decide how one part is read."""

    format: str = ""
    files: list[str] = []
    reading: PartReading = PartReading()
    readings: dict[str, PartReading] = {}


def reading_of_parts(sources: Sequence[str]) -> dict[str, Any]:
    """Return the options for sources that are parts of a saved split; none for others.

    Raises
    ------
    DataError
        If a split.json next to them is damaged.
    """
    options: dict[str, Any] = {}
    for source in sources:
        manifest = Path(source).parent / SPLIT_MANIFEST
        if "::" in source or "://" in source or not manifest.is_file():
            continue
        text = manifest.read_bytes()[:_LONGEST]
        if SPLIT_FORMAT.encode() not in text:
            continue
        try:
            split = msgspec.json.decode(text, type=_Description)
        except msgspec.MsgspecError as error:
            raise DataError(f"{manifest} is damaged: {error}.") from None
        path = Path(source)
        paths = [path] if path.exists() else [*path.parent.glob(path.name)]
        stems = {name.partition(".")[0] for name in split.files}
        roles = {file.name.partition(".")[0] for file in paths}
        if split.format == SPLIT_FORMAT and roles <= stems:
            for role in sorted(roles):
                options |= split.readings.get(role, split.reading).options
    return options
