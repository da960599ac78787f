"""Install each wheel or sdist in an empty environment and try it: `make smoke`.

Usage: python tests/smoke.py dist/*.whl dist/*.tar.gz
       python tests/smoke.py --installed        tries what this Python has
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTES = "The nurse called the doctor.\nThe doctor came by tram.\nBatman drew a bat.\n"
LIBRARY = """
from lowrank import PCA, kernels, truncated_svd
from recsys import Recommender, read_ratings, sample_path
ratings = read_ratings(sample_path())
top = Recommender.load("model").recommend(1089, n=1)["title"][0]
assert top == "Nosferatu", top
assert truncated_svd(ratings.matrix, k=5, random_state=0).s.shape == (5,)
assert PCA(2).fit(ratings.matrix).n_components_ == 2
print("kernels:", kernels.backend())
"""


def commands(version: str) -> list[tuple[str, str]]:
    """Return what is run, each with a word that its output must have."""
    return [
        ("recsys --version", f"recsys {version}"),
        ("recsys info", "libraries"),
        ("recsys data sample", ""),
        ("recsys fit recsys-sample --out model", ""),
        ("recsys recommend model --user 1089 -n 3", "Nosferatu"),
        ("recsys explain model --user 1089 --title Alien -n 3", "base"),
        ("recsys evaluate recsys-sample", "ndcg@10"),
        ("recsys lsi index notes.txt --out notes", ""),
        ("recsys lsi query notes doctor", "tram"),
    ]


def install(artifact: Path, folder: Path) -> Path:
    """Install a file of dist/ in a folder of its own; return where its programs are."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    run([programs / "python", "-m", "pip", "install", "--quiet", str(artifact)], folder)
    return programs


def try_out(name: str, programs: Path, version: str, folder: Path) -> None:
    """Run the command and the library in a folder."""
    (folder / "notes.txt").write_text(NOTES, encoding="utf-8")
    for line, expected in commands(version):
        program, *arguments = line.split()
        printed = run([programs / program, *arguments], folder)
        if expected not in printed:
            sys.exit(f"{name}: `{line}` does not print {expected!r} but:\n{printed}")
    print(f"{name}: {run([programs / 'python', '-I', '-c', LIBRARY], folder).strip()}")


def run(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"`{' '.join(map(str, command))}` failed with exit code {done.returncode}."
        )
    return done.stdout


def main() -> None:
    if not sys.argv[1:]:
        sys.exit(__doc__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            if name == "--installed":
                programs = Path(sysconfig.get_path("scripts"))
            else:
                programs = install(Path(name).resolve(), Path(folder))
            try_out(Path(name).name, programs, project["version"], Path(folder))


if __name__ == "__main__":
    main()
