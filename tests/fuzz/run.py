"""Fuzz the readers of bytes from outside: ``python tests/fuzz/run.py SECONDS [TARGET]...``.

Each target runs for some seconds: with atheris (`pip install atheris`), which prefers
inputs that reach new lines, otherwise with random changes of the seeds. Inputs that
reach new lines are in build/fuzz/TARGET. An input that fails is printed; add it to
``FOUND`` of its target, which the tests try.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

TARGETS = Path(__file__).parent / "targets"
CORPUS = Path(__file__).resolve().parents[2] / "build" / "fuzz"
NAMES = sorted(path.stem for path in TARGETS.glob("*.py"))
_DICTIONARY = (
    *(
        b"\0",
        b"\n",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b",",
        b":",
        b"null",
        b"-1",
        b"1e999",
    ),
    *(
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"99999999999999999999",
        b"nan",
        b"%00",
        b"\r",
    ),
)


def target(name: str) -> ModuleType:
    """Return the module of a target."""
    return importlib.import_module(f"fuzz.targets.{name}")


def changed(seeds: list[bytes], rng: random.Random) -> bytes:
    """Return a seed with some random changes."""
    content = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        begin = rng.randrange(len(content) + 1)
        end = min(len(content), begin + rng.choice([0, 1, 1, 2, 8, 64]))
        other = rng.choice(seeds)
        at = rng.randrange(len(other) + 1)
        pieces = (
            rng.choice(_DICTIONARY),
            rng.randbytes(end - begin),
            bytes(content[begin:end]) * 2,
            other[at : at + rng.randrange(20)],
            b"",
        )
        content[begin:end] = rng.choice(pieces)
    return bytes(content)


def fuzz_at_random(name: str, seconds: float, seed: int | None = None) -> int:
    """Try changed seeds for some seconds, and return how many."""
    module = target(name)
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        data = changed(module.SEEDS, rng)
        try:
            module.attempt(data)
        except BaseException:
            print(f"{name}: attempt({data!r}) fails", file=sys.stderr)
            raise
        count += 1
    return count


def fuzz_by_coverage(name: str, seconds: float) -> None:
    """Run atheris, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["recsys"]):
        module = target(name)
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(module.SEEDS):
        (folder / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={seconds:.0f}", "-rss_limit_mb=4096", "-timeout=60"]
    # The inputs that fail are written there, and printed.
    options = [*limits, f"-artifact_prefix={CORPUS}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(folder), *options], module.attempt)
    atheris.Fuzz()


def main(seconds: float, *names: str) -> int:
    """Fuzz targets one after the other, in processes of their own."""
    failed = []
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        words = [sys.executable, __file__, "--one", name, str(seconds)]
        if subprocess.run(words, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if sys.argv[1] != "--one":
        sys.exit(main(float(sys.argv[1]), *sys.argv[2:]))
    warnings.simplefilter("ignore")
    logging.disable()  # of requests that are none
    if importlib.util.find_spec("atheris"):
        fuzz_by_coverage(sys.argv[2], float(sys.argv[3]))
    print(f"{fuzz_at_random(sys.argv[2], float(sys.argv[3])):,} inputs")
