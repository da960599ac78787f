"""Run the small set of benchmarks, one after the other: `make bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SMALL = [
    ["startup.py"],
    ["als_kernel.py", "--ratings", "2000000", "--repeats", "3"],
    ["fit_memory.py", "--ratings", "2000000"],
]
ON_REAL_DATA = [
    ["svd.py", "--repeats", "3", "gowalla", "normalised", "cranfield", "dense"],
    ["serve.py", "--repeats", "3"],
    ["metrics.py", "--repeats", "3"],
    ["lsi.py", "--repeats", "3", "100", "200"],
    ["topn.py", "--data", "ml-latest-small"],
]


def main() -> None:
    """Run each script in a process of its own; a failing one fails the whole."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    chosen = SMALL + (ON_REAL_DATA if os.environ.get("RECSYS_DATASETS") else [])
    for script, *arguments in chosen:
        print(f"\n== {script} {' '.join(arguments)}", flush=True)
        command = [sys.executable, str(HERE / script), *arguments]
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})


if __name__ == "__main__":
    main()
