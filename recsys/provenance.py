"""Provenance of a model: source data, time, reading options and parent model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.addresses import Location, located
from recsys.data.read_options import SAVED

if TYPE_CHECKING:
    from recsys.ranking.chance import Chances

AS_OF = "as_of"
"""Saved option: the present time of a reading, which its repetition needs; updates have another."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """Model as it was requested, before the data decided anything; a refit repeats the request.

    Attributes
    ----------
    model : str
        A name in `recsys.MODELS`, or "auto".
    parameters : dict
        Parameters of the model that are not the defaults.
    candidates : dict of str to dict
        For auto, the requested parameters of each model that it may choose.
    is_compared : bool
        For auto, whether candidates are compared; otherwise the first one is fitted.
    is_validated : bool
        Whether the fit had held-out ratings, which a refit does not have.
    """

    model: str
    parameters: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    candidates: dict[str, dict[str, bool | int | float | str | None]] = field(
        default_factory=dict
    )
    is_compared: bool = True
    is_validated: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a model; the identity, time and fingerprint are None before it is saved.

    Attributes
    ----------
    version : str or None
        Name of the model and prefix of the checksum, such as "als@1f2e3d4c": a unique identifier.
    created : str or None
        Time in UTC, ISO 8601.
    source : str or None
        Description of how the ratings were read, one sentence.
    period : tuple of str or None
        Times of the first and the last rating.
    fingerprint : str or None
        SHA-256 of the ratings.
    parent : str or None
        Version of the model that was updated to this one.
    tag : str or None
        Free text.
    reading : dict
        Reading options that updates reuse: those in `SAVED`, and "window". The present time of
        the reading is in `AS_OF`, and is not reused.
    request : FitRequest or None
        Model that was requested; None if it is not in `recsys.MODELS`.
    keep_columns : tuple of str
        Columns of users that are saved though no feature needs them.
    chances : Chances or None
        Chances of items in lists, calibrated on held-out ratings; updates keep them.
    """

    version: str | None = None
    created: str | None = None
    source: str | None = None
    period: tuple[str, str] | None = None
    fingerprint: str | None = None
    parent: str | None = None
    tag: str | None = None
    reading: dict[str, Any] = field(default_factory=dict)
    request: FitRequest | None = None
    keep_columns: tuple[str, ...] = ()
    chances: Chances | None = None

    def child(self, reading: Mapping[str, Any]) -> Provenance:
        """Return the provenance of an update of this model, with some reading options changed."""
        merged = {**self.reading, **reading}
        # None removes an option of the parent.
        options = {name: value for name, value in merged.items() if value is not None}
        return Provenance(
            source=self.source,
            parent=self.version,
            reading=options,
            request=self.request,
            keep_columns=self.keep_columns,
            chances=self.chances,
        )


def remembered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a reading to save with a model.

    Tables are saved by name only. Frames are not, nor addresses with a user or a password.
    """
    stored: dict[str, Any] = {
        name: value
        for name in SAVED
        if (value := options.get(name)) is not None
        and not (name.endswith("_table") and not isinstance(value, str))
        and not (isinstance(value, str) and isinstance(located(value), Location))
    }
    for name in stored.keys() & {
        "item_table",
        "user_table",
    }:  # for updates in other folders
        file, mark, of_database = stored[name].partition("::")
        if "://" not in file and Path(file).exists():
            stored[name] = f"{Path(file).absolute()}{mark}{of_database}"
    if "event_weights" in stored:
        stored["event_weights"] = {
            k: float(v) for k, v in stored["event_weights"].items()
        }
    if "scale" in stored:
        stored["scale"] = list(map(float, stored["scale"]))
    return stored


def without_weights(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reading options without weights and tables, for test ratings.

    Examples
    --------
    >>> without_weights({"user": "who", "half_life": "30d"})
    {'user': 'who'}
    """
    left_out = ("half_life", "item_table", "user_table", "window", AS_OF)
    return {name: value for name, value in reading.items() if name not in left_out}
