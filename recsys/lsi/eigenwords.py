"""Eigenwords: word vectors from a truncated SVD of word-context counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
from scipy import sparse

from lowrank.kernels.arrays import Int64s
from recsys.data.ids import Ids
from recsys.errors import (
    DataError,
    NotFittedError,
    check_choice,
    check_whole,
    is_integer,
)
from recsys.lsi.documents import Texts, text_batches
from recsys.lsi.queries import best_rows, similar_rows
from recsys.lsi.space import decompose
from recsys.lsi.vectorizer import TOKEN_PATTERN, Language, StopWords, Tokenizer
from recsys.messages import counted
from recsys.ranking.topn import Cosine

if TYPE_CHECKING:
    from lowrank.arguments import RandomStateLike
    from recsys.data.ids import IdsLike

_SIDES = ("apart", "merged")
_SCALINGS = ("ppmi", "sqrt")


class Eigenwords:
    """Word vectors that are similar for words in similar contexts.

    In an index of documents, nurse is similar to hospital; here nurse is similar to doctor, because
    both occur between the same words. The matrix of counts has the number of times that each word
    occurs at each place of a window around each other word. The counts are scaled; the word vectors
    are the rows of U_k S_k^(1/2).

    Parameters
    ----------
    n_components : int or str, default 50
        Maximum number of dimensions (small vocabularies have fewer), or a rule as for `LSI`.
    window : int, default 2
        Number of places before and after the word.
    sides : {"apart", "merged"}, default "apart"
        Whether a context is a word at a certain place (two before, one before, one after, ...) or a
        word anywhere in the window.
    scaling : {"sqrt", "ppmi"}, default "sqrt"
        "sqrt": sqrt(#(w, c)) / (#(w) #(c))^(1/4), as in canonical correlation of square roots.
        "ppmi": max(0, ln(#(w, c) # / (#(w) #(c)))), positive pointwise mutual information, which
        gives rare words more weight.
    min_count : int, default 1
        Minimum number of occurrences of a word. Rarer words are skipped, but keep their places.
    stop_words, token_pattern
        As for `LSI`.
    random_state : int, Generator, RandomState or None, default 0

    Attributes
    ----------
    terms_ : Ids
        The words, in alphabetic order.
    vectors_ : ndarray of shape (n_words, k)
    singular_values_ : ndarray of shape (k,)
    counts_ : csr_array of shape (n_words, n_contexts)
        The counts; if sides are "apart", n_words columns for each place from left to right.

    References
    ----------
    Dhillon, Foster & Ungar (2015), "Eigenwords: spectral word embeddings".
    Levy & Goldberg (2014), "Neural word embedding as implicit matrix factorization" (PPMI and the
    power of S).

    Examples
    --------
    >>> texts = ["the cat sat here", "the dog sat here", "a cat ran off", "a dog ran off"]
    >>> Eigenwords(3).fit(texts).nearest("cat", n=1)["similar"].to_list()
    ['dog']
    """

    def __init__(
        self,
        n_components: int | str = 50,
        *,
        window: int = 2,
        sides: str = "apart",
        scaling: str = "sqrt",
        min_count: int = 1,
        stop_words: StopWords = None,
        token_pattern: str = TOKEN_PATTERN,
        random_state: RandomStateLike = 0,
    ) -> None:
        check_choice("sides", sides, _SIDES)
        check_choice("scaling", scaling, _SCALINGS)
        self.n_components = n_components
        self.window = check_whole("window", window, 1)
        self.sides = sides
        self.scaling = scaling
        self.min_count = check_whole("min_count", min_count, 1)
        self.random_state = random_state
        # Raises at once if the pattern is invalid.
        self._tokenize = Tokenizer(token_pattern)
        self._stop_words = Language.named(None, stop_words).stop_words
        self._terms: Ids | None = None

    def __repr__(self) -> str:
        if self._terms is None:
            return "<Eigenwords: not fitted>"
        n_words, k = self.vectors_.shape
        return f"<Eigenwords: {n_words:,} words in {counted(k, 'dimension')}>"

    def fit(self, texts: Iterable[Any]) -> Self:
        """Learn word vectors from texts; contexts do not extend across texts.

        Parameters
        ----------
        texts : iterable of str or DocumentBatch
            Texts, which are read once. Memory holds one number for each word of running text.

        Raises
        ------
        DataError
            If there are no texts, or no word has a context.
        """
        batches = text_batches(texts)
        if batches is None:
            raise DataError("Eigenwords need texts; got a matrix.")
        words, ends, terms = self._words(Texts(batches))
        if not len(terms):
            raise DataError(
                f"No word occurs at least min_count={self.min_count} times."
            )
        self.counts_ = word_contexts(words, ends, len(terms), self.window, self.sides)
        if not self.counts_.nnz:
            raise DataError("No word has another word in its window.")
        scaled = _scaled(self.counts_, self.scaling)
        k = self.n_components
        if is_integer(k):
            k = min(k, *scaled.shape)
        # Words as columns, so that U are the rows of the components.
        by_context = scaled.T.tocsr()
        space = decompose(by_context, k, self.random_state)
        self.singular_values_ = space.singular_values
        # U S^(1/2) is better than U S for similarity (Levy & Goldberg).
        scale = np.sqrt(space.singular_values)
        vectors = space.components * scale[:, None]
        self.vectors_ = np.ascontiguousarray(vectors.T)
        self._terms = terms
        return self

    @property
    def terms_(self) -> Ids:
        """The words.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        if self._terms is None:
            raise NotFittedError(
                "The eigenwords are not fitted yet; call fit(texts) first."
            )
        return self._terms

    def nearest(self, words: IdsLike | str, n: int = 10) -> pl.DataFrame:
        """Find the n words whose vectors have the largest cosine with given words.

        Parameters
        ----------
        words : word or sequence of words
        n : int

        Returns
        -------
        polars DataFrame
            Columns word, similar, rank, score.

        Raises
        ------
        UnknownIdError
            If a word is not known.
        NotFittedError
            Before `fit`.
        """
        terms = self.terms_
        return similar_rows(terms, np.asarray(self.vectors_, np.float32), words, n)

    def analogy(
        self,
        first: str,
        second: str,
        third: str,
        n: int = 10,
    ) -> pl.DataFrame:
        """Find the n words that are to `third` as `second` is to `first`.

        They have the largest cosine with second - first + third, all scaled to length 1. The three
        words themselves are left out.

        Returns
        -------
        polars DataFrame
            Columns word, rank, score.

        Raises
        ------
        UnknownIdError
            If a word is not known.
        NotFittedError
            Before `fit`.

        References
        ----------
        Levy & Goldberg (2014), "Linguistic regularities in sparse and explicit word
        representations".

        Examples
        --------
        >>> texts = ["a king rules", "a queen rules", "a king is he", "a queen is she",
        ...          "a man is he", "a woman is she", "a man works", "a woman works"]
        >>> Eigenwords(5).fit(texts).analogy("man", "king", "woman", n=1)["word"].to_list()
        ['queen']
        """
        rows = self.terms_.index([first, second, third])
        vectors = np.asarray(self.vectors_, np.float32)
        # Words of different frequency have vectors of different length.
        lengths = np.linalg.norm(vectors[rows], axis=1, keepdims=True)
        unit = vectors[rows] / lengths
        target = unit[1] - unit[0] + unit[2]
        # The three words may be among the best.
        top = best_rows(Cosine(vectors, target[None, :]), 1, n + len(rows))
        others = np.flatnonzero(~np.isin(top.items, rows))[:n]
        ranks = np.arange(1, len(others) + 1, dtype=np.int32)
        return pl.DataFrame(
            [
                self.terms_.values.gather(top.items[others]).alias("word"),
                pl.Series("rank", ranks),
                pl.Series("score", top.scores[others]),
            ]
        )

    def _words(self, batches: Iterable[Sequence[str]]) -> tuple[Int64s, Int64s, Ids]:
        """Return running text as numbers (-1 for rare words), the ends of texts, and the words."""
        number_of: dict[str, int] = {}
        numbers: list[Int64s] = [np.zeros(0, np.int64)]
        lengths: list[int] = []
        for texts in batches:
            for text in texts:
                words = self._tokenize(text)
                words = [word for word in words if word not in self._stop_words]
                # A new word gets the next number.
                row = [number_of.setdefault(word, len(number_of)) for word in words]
                numbers.append(np.array(row, dtype=np.int64))
                lengths.append(len(row))
        running = np.concatenate(numbers)
        counts = np.bincount(running, minlength=len(number_of))
        # Words are numbered in alphabetic order; rare words keep their places in the text.
        frequent = [
            word
            for word in sorted(number_of)
            if counts[number_of[word]] >= self.min_count
        ]
        target = np.full(len(number_of), -1)
        numbers_of_frequent = [number_of[word] for word in frequent]
        target[numbers_of_frequent] = np.arange(len(frequent))
        labels = Ids(frequent, "word", sort=False)
        return target[running], np.cumsum(lengths), labels


def word_contexts(
    words: Int64s,
    ends: Int64s,
    n_words: int,
    window: int,
    sides: str,
) -> Any:
    """Count how often each word has each other word at each place of a window.

    `words` are the numbers of the words of running text; negative ones are skipped. `ends` are the
    positions where texts end. The result is a csr_array with n_words rows, and n_words columns for
    each place, or n_words columns in total if the sides are merged.
    """
    text = np.searchsorted(ends, np.arange(len(words)), side="right")
    offsets = [*range(-window, 0), *range(1, window + 1)]
    # The words at each place have columns of their own, if the sides are apart.
    step = n_words if sides == "apart" else 0
    shape = (n_words, n_words + step * (len(offsets) - 1))
    total: Any = sparse.csr_array(shape, dtype=np.float32)
    for number, offset in enumerate(offsets):
        # The word at `middle` has the word at `context` at this place of its window.
        before = max(0, -offset)
        after = max(0, offset)
        middle = slice(before, len(words) - after)
        context = slice(after, len(words) - before)
        is_pair = text[middle] == text[context]
        is_pair &= (words[middle] >= 0) & (words[context] >= 0)
        rows = words[middle][is_pair]
        columns = words[context][is_pair] + step * number
        ones = np.ones(len(rows), dtype=np.float32)
        total += sparse.coo_array((ones, (rows, columns)), shape=shape)
    return total


def _scaled(counts: Any, scaling: str) -> Any:
    """Return the counts scaled by "ppmi" or "sqrt", as `Eigenwords` defines them."""
    coo = counts.tocoo()
    n_words, n_contexts = coo.shape
    # These sums need float64.
    of_words = np.bincount(coo.row, coo.data, n_words).astype(np.float64)
    of_contexts = np.bincount(coo.col, coo.data, n_contexts).astype(np.float64)
    product = of_words[coo.row] * of_contexts[coo.col]
    if scaling == "ppmi":
        information = np.log(coo.data * of_words.sum() / product)
        data = np.maximum(information, 0)
    else:
        data = np.sqrt(coo.data / np.sqrt(product))
    entries = (data.astype(np.float32), (coo.row, coo.col))
    scaled = sparse.csr_array(entries, shape=coo.shape)
    scaled.eliminate_zeros()
    return scaled
