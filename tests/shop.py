"""A generated shop: customers, products in two languages, and events with kinds and zones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import polars as pl

GROUPS = {
    "tea": ("Grüner Tee &amp; mehr", "Green tea"),
    "pots": ("Gußeiserner Topf", "Cast-iron pot"),
    "lamps": ("Lampe f&uuml;r den Tisch", "Table lamp"),
    "books": ("Buch über Gärten", "Book on gardens"),
}
KINDS = {"view": 0.75, "cart": 0.1, "purchase": 0.15}
WEIGHTS = "view=1,cart=3,purchase=5"
_OWN_GROUP = 0.85  # share of a customer's events that are of the customer's group
_DAYS = 60


@dataclass(frozen=True)
class Shop:
    """Tables of a shop.

    Attributes
    ----------
    customers : polars DataFrame
        Columns customer_id, email, country.
    products : polars DataFrame
        Columns sku, title, description (HTML), category, price, stock.
    events : polars DataFrame
        Columns customer_id, sku, event, time (with a zone), in the order of time.
    """

    customers: pl.DataFrame
    products: pl.DataFrame
    events: pl.DataFrame


def generated(n_customers: int = 120, n_products: int = 96, seed: int = 0) -> Shop:
    """Return a shop whose customers prefer a group of products each; the same for a seed."""
    rng = np.random.default_rng(seed)
    groups = [*GROUPS]
    customers = pl.DataFrame(
        {
            "customer_id": [f"c{n}" for n in range(n_customers)],
            "email": [f"c{n}@example.org" for n in range(n_customers)],
            "country": [("DE", "GB")[n % 2] for n in range(n_customers)],
        }
    )
    categories = [groups[n % len(groups)] for n in range(n_products)]
    titles = [GROUPS[name][n % 2] for n, name in enumerate(categories)]
    products = pl.DataFrame(
        {
            "sku": [f"{name}-{n}" for n, name in enumerate(categories)],
            "title": [f"{title} {n}" for n, title in enumerate(titles)],
            "description": [
                f"<p>{title}<br/>Nr.&nbsp;<b>{n}</b></p>"
                for n, title in enumerate(titles)
            ],
            "category": categories,
            "price": np.round(rng.uniform(3, 90, n_products), 2),
            "stock": rng.integers(1, 20, n_products),
        }
    )
    of_group = {name: np.flatnonzero(np.array(categories) == name) for name in groups}
    now = datetime.now(UTC).replace(microsecond=0)
    zones = [UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5))]
    rows = []
    for customer in range(n_customers):
        for _ in range(int(rng.integers(6, 14))):
            is_own = rng.random() < _OWN_GROUP
            group = groups[
                customer % len(groups) if is_own else rng.integers(len(groups))
            ]
            product = int(rng.choice(of_group[group]))
            kind = str(rng.choice([*KINDS], p=[*KINDS.values()]))
            time = now - timedelta(days=float(rng.uniform(0.1, _DAYS)))
            zone = zones[int(rng.integers(len(zones)))]
            text = time.replace(microsecond=0).astimezone(zone).isoformat()
            rows.append((f"c{customer}", products["sku"][product], kind, text, time))
    names = ["customer_id", "sku", "event", "time", "moment"]
    events = pl.DataFrame(rows, names, orient="row").sort("moment").drop("moment")
    return Shop(customers, products, events)
