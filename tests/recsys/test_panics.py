"""What a panic of polars writes to standard error is not seen, what others write is."""

from __future__ import annotations

import os
from threading import Thread

import polars as pl
import pytest

from recsys.panics import panics_as_errors

ANOTHER = (
    "called `Result::unwrap()` on an `Err` value: "
    'JoinError::Panic(Id(7), "divisor of zero\\n in a page", ...)'
)


def panic(message: str) -> None:
    os.write(2, b"thread panicked at crates/polars\nnote: run with RUST_BACKTRACE=1\n")
    raise pl.exceptions.PanicException(message)


@pytest.mark.parametrize(
    ("said", "reason"), [("out of range", "out of range"), (ANOTHER, "divisor of zero\n in a page")]
)
def test_a_panic_is_an_error_and_says_nothing_itself(capfd, said, reason):
    with pytest.raises(pl.exceptions.ComputeError, match=f"^{reason}$"), panics_as_errors():
        panic(said)
    assert capfd.readouterr().err == ""
    os.write(2, b"afterwards")
    assert capfd.readouterr().err == "afterwards"


def test_what_is_no_panic_is_written_in_the_end(capfd):
    with panics_as_errors():
        os.write(2, b"a warning")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a warning"


def test_several_threads_may_read_at_once(capfd):
    def read(number: int) -> None:
        for _ in range(50):
            with panics_as_errors():
                os.write(2, b"x")

    threads = [Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b".")
    assert capfd.readouterr().err == "x" * 400 + "."


def test_without_standard_error(capfd):
    kept = os.dup(2)
    os.close(2)
    try:
        with pytest.raises(pl.exceptions.ComputeError), panics_as_errors():
            raise pl.exceptions.PanicException("x")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
