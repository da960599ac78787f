"""Generate the synthetic ratings of the sample data: items.csv -> ratings.csv.

The films of ``items.csv`` are real; the users, their tastes and their ratings are drawn at random
here, and the same seed gives the same file to the byte. ``README.md`` gives the model in formulas.

    python data/make_sample.py                       # writes ratings.csv next to this script
    python data/make_sample.py --output ratings.csv --seed 1
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

HERE = Path(__file__).resolve().parent
SEED = 20240229

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

N_USERS = 2000
MIN_RATINGS, MAX_RATINGS = 5, 150
MEDIAN_RATINGS, SPREAD_RATINGS = 20, 0.85  # log-normal
START = datetime(2015, 1, 1, tzinfo=UTC).timestamp()
END = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
DAY = 86_400

MEAN = 2.8  # of a film that means nothing to a user without bias
QUALITY, BIAS, NOISE = 0.22, 0.35, 0.45  # standard deviations, in stars
AFFINITY = 1.7  # stars between a film without any liked genre and a perfect match
CHOICE = 3.2  # log-odds of being watched, between the same two films
ZIPF_EXPONENT, ZIPF_OFFSET = 1.0, 10

GENRES = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War",
    "Western",
)  # fmt: skip

TASTES: dict[str, dict[str, float]] = {
    "horror": {
        "Horror": 1.0,
        "Thriller": 0.2,
        "Children": -0.4,
        "Musical": -0.4,
        "Romance": -0.3,
    },
    "westerns": {
        "Western": 1.0,
        "Action": 0.15,
        "Sci-Fi": -0.4,
        "Musical": -0.3,
        "Horror": -0.3,
    },
    "musicals": {
        "Musical": 1.0,
        "Romance": 0.2,
        "Horror": -0.5,
        "War": -0.4,
        "Sci-Fi": -0.3,
    },
    "family": {
        "Animation": 0.9,
        "Children": 0.6,
        "Horror": -0.5,
        "War": -0.4,
        "Crime": -0.3,
    },
    "science fiction": {
        "Sci-Fi": 1.0,
        "Action": 0.15,
        "Romance": -0.4,
        "Western": -0.3,
    },
    "romance": {
        "Romance": 1.0,
        "Drama": 0.15,
        "Horror": -0.5,
        "Action": -0.4,
        "Western": -0.3,
    },
    "war": {
        "War": 1.0,
        "Drama": 0.15,
        "Children": -0.4,
        "Fantasy": -0.3,
        "Musical": -0.3,
    },
    "crime": {
        "Crime": 0.9,
        "Thriller": 0.4,
        "Musical": -0.4,
        "Fantasy": -0.3,
        "Children": -0.3,
    },
    "comedy": {
        "Comedy": 1.0,
        "Romance": 0.1,
        "Horror": -0.3,
        "War": -0.4,
        "Film-Noir": -0.3,
    },
    "documentary": {"Documentary": 1.0, "Drama": 0.2, "Fantasy": -0.5, "Action": -0.4},
    "noir and mystery": {
        "Film-Noir": 0.9,
        "Mystery": 0.7,
        "Children": -0.4,
        "Sci-Fi": -0.3,
    },
    "adventure": {"Action": 0.7, "Adventure": 0.7, "Fantasy": 0.3, "Documentary": -0.5},
    "drama": {"Drama": 1.0, "Action": -0.4, "Horror": -0.4, "Sci-Fi": -0.3},
}

# Films that most people have heard of head the popularity ranking, in random order.
FAMOUS = frozenset({
    "2001: A Space Odyssey", "Airplane!", "Alien", "Aliens", "Amélie", "Apocalypse Now",
    "Back to the Future", "Blade Runner", "Bowling for Columbine", "Casablanca", "Citizen Kane",
    "Die Hard", "Fargo", "Fight Club", "Finding Nemo", "Forrest Gump", "Ghostbusters", "Gladiator",
    "Goodfellas", "Grease", "Groundhog Day", "Halloween", "Inception", "Jaws", "Jurassic Park",
    "La La Land", "March of the Penguins", "Mary Poppins", "Psycho", "Pulp Fiction",
    "Raiders of the Lost Ark", "Rear Window", "Saving Private Ryan", "Schindler's List",
    "Singin' in the Rain", "Spirited Away", "Star Wars", "Terminator 2: Judgment Day",
    "The Dark Knight", "The Empire Strikes Back", "The Exorcist", "The Godfather",
    "The Good, the Bad and the Ugly", "The Lion King", "The Maltese Falcon", "The Matrix",
    "The Princess Bride", "The Shawshank Redemption", "The Shining", "The Silence of the Lambs",
    "The Sound of Music", "The Third Man", "The Wizard of Oz", "Titanic", "Toy Story",
    "Unforgiven", "Vertigo", "When Harry Met Sally...",
    "The Lord of the Rings: The Fellowship of the Ring",
})  # fmt: skip


def genre_vectors(genres: pl.Series) -> Floats:
    """Make unit vectors over `GENRES`, (n_items, 18); the first genre of a film counts double."""
    vectors = np.zeros((len(genres), len(GENRES)))
    for vector, names in zip(vectors, genres.str.split("|"), strict=True):
        for position, name in enumerate(names):
            vector[GENRES.index(name)] = 1.0 if position == 0 else 0.5
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def taste_vectors() -> Floats:
    """Make an array of shape (n_tastes, 18) of `TASTES`."""
    return np.array(
        [[taste.get(genre, 0.0) for genre in GENRES] for taste in TASTES.values()]
    )


def user_preferences(rng: np.random.Generator) -> Floats:
    """Draw what each user thinks of each genre, shape (n_users, 18).

    A mixture of one to three tastes, personal deviations from it, and one genre much disliked.
    """
    n_tastes = len(TASTES)
    # One taste for half of the users, two for 35%, three for 15%.
    how_many = 1 + (rng.random((N_USERS, 1)) > [0.5, 0.85]).sum(axis=1)
    order = rng.random((N_USERS, n_tastes)).argsort(axis=1)
    shares = np.where(
        order < how_many[:, None], 0.3 + rng.random((N_USERS, n_tastes)), 0.0
    )
    shares /= shares.max(axis=1, keepdims=True)
    preferences = shares @ taste_vectors() + 0.15 * rng.standard_normal(
        (N_USERS, len(GENRES))
    )
    disliked = (preferences + 0.3 * rng.standard_normal(preferences.shape)).argmin(
        axis=1
    )
    preferences[np.arange(N_USERS), disliked] -= 0.5
    return preferences


def popularity(items: pl.DataFrame, rng: np.random.Generator) -> Floats:
    """Draw how often each film is watched for no reason of taste: Zipf weights over a ranking.

    The famous come first, and recent films tend to come before old ones.
    """
    famous = items["title"].is_in(list(FAMOUS)).to_numpy()
    age = (2024 - items["year"].to_numpy()) / 100
    ranking = rng.random(items.height) - 0.7 * age + 2 * famous
    rank = (-ranking).argsort().argsort()
    weight: Floats = (rank + ZIPF_OFFSET) ** -ZIPF_EXPONENT
    return weight


def quality(weight: Floats, rng: np.random.Generator) -> Floats:
    """Draw what everybody agrees on, in stars: random, a little better for the popular films."""
    fame = np.log(weight)
    fame = (fame - fame.mean()) / fame.std()
    stars: Floats = QUALITY * (0.4 * fame + 0.9 * rng.standard_normal(weight.size))
    return stars


def watch(log_odds: Floats, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Draw the films of each user without replacement, given log-odds (n_users, n_items).

    Returns
    -------
    users, items : ndarray of shape (n_ratings,)
        Indices. A user's films come in random order.
    """
    wanted = MEDIAN_RATINGS * np.exp(SPREAD_RATINGS * rng.standard_normal(N_USERS))
    counts = np.clip(np.rint(wanted), MIN_RATINGS, MAX_RATINGS).astype(int)
    # The largest Gumbel-perturbed log weights are a draw without replacement.
    gumbel = -np.log(rng.standard_exponential(log_odds.shape))
    best = (-(log_odds + gumbel)).argsort(axis=1)
    chosen = [row[:count] for row, count in zip(best, counts, strict=True)]
    shuffled = [row[rng.random(row.size).argsort()] for row in chosen]
    return np.repeat(np.arange(N_USERS), counts), np.concatenate(shuffled)


def half_stars(stars: Floats) -> Floats:
    """Round to 0.5, 1.0, ... 5.0."""
    return np.clip(np.rint(2 * stars), 1, 10) / 2


def arrivals(rng: np.random.Generator) -> Floats:
    """Unix seconds at which each user rates for the first time, ascending: more and more arrive."""
    return np.sort(START + 0.95 * (END - START) * np.sqrt(rng.random(N_USERS)))


def timestamps(users: Integers, arrival: Floats, rng: np.random.Generator) -> Integers:
    """Unix seconds of each rating: a film every minute or so, and another session weeks later.

    The ratings of a user are neighbours in `users`, in the order in which they are given.
    """
    new_user = np.diff(users, prepend=-1) > 0
    new_session = rng.random(users.size) < 1 / 9
    mean_pause = np.where(new_session, 60 * DAY, 50)
    pause = 5 + mean_pause * rng.standard_exponential(users.size)
    elapsed = np.cumsum(np.where(new_user, 0, pause))
    seconds: Floats = arrival[users] + elapsed - elapsed[new_user][users]
    # Whoever would go on after the end stays within the last month instead.
    within = np.where(seconds < END, seconds, END - 1 - seconds % (30 * DAY))
    return within.astype(np.int64)


def make_ratings(items: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Draw the whole table: userId, itemId, rating, timestamp."""
    rng = np.random.default_rng(seed)
    affinity = user_preferences(rng) @ genre_vectors(items["genres"]).T
    weight = popularity(items, rng)
    arrival = arrivals(rng)
    year_over = np.array(
        [datetime(year + 1, 1, 1, tzinfo=UTC).timestamp() for year in items["year"]]
    )
    released = arrival[:, None] >= year_over
    users, films = watch(
        np.where(released, np.log(weight) + CHOICE * affinity, -np.inf), rng
    )
    stars = (
        MEAN + quality(weight, rng)[films] + BIAS * rng.standard_normal(N_USERS)[users]
    )
    stars += AFFINITY * affinity[users, films] + NOISE * rng.standard_normal(users.size)
    columns = {
        "userId": users + 1,
        "itemId": items["itemId"].gather(films),
        "rating": half_stars(stars),
        "timestamp": timestamps(users, arrival, rng),
    }
    return pl.DataFrame(columns).sort("userId", "timestamp", "itemId")


def main() -> None:
    """Read the arguments, write the file."""
    parser = argparse.ArgumentParser(
        description="Generate the synthetic ratings of the sample."
    )
    parser.add_argument("--output", type=Path, default=HERE / "ratings.csv")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    ratings = make_ratings(pl.read_csv(HERE / "items.csv"), arguments.seed)
    arguments.output.write_bytes(ratings.write_csv().encode())
    print(f"wrote {arguments.output}: {ratings.height:,} ratings")


if __name__ == "__main__":
    main()
