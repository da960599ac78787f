"""Serve the saved models and indexes of a folder with an installation, and ask every route.

python check.py FOLDER
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

ADDRESS = "http://127.0.0.1:8123"
PLAIN = [
    "/",
    "/page/style.css",
    "/docs",
    "/openapi.json",
    "/metrics",
    "/health/ready",
    "/v1/model",
]
NOT_OF_ALL = 400, 404  # such as the neighbours of an item in a model of popularity


def answer(target: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(ADDRESS + target, data, {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=60) as reply:
            found = reply.read()
            is_json = reply.headers["content-type"] == "application/json"
            return reply.status, json.loads(found) if is_json else found
    except HTTPError as error:
        return error.code, json.loads(error.read())


def of_model() -> Iterator[tuple[str, Any]]:
    """Yield what is asked of a model."""
    user, item = (
        answer(f"/v1/{side}s?n=1")[1][f"{side}s"][0] for side in ("user", "item")
    )
    item, person = item["item"], quote(str(user))
    for query in (
        "",
        "?explain=true",
        "?where=item%20IS%20NOT%20NULL",
        f"?exclude={item}",
    ):
        yield f"/v1/recommend/{person}{query}", None
    yield "/v1/recommend/987654321?unknown=popular", None
    for route in ("items?q=a", f"items/{item}", f"users/{person}", "map", "spectrum"):
        yield f"/v1/{route}", None
    yield f"/v1/similar/{item}", None
    yield f"/v1/explain/{person}/{item}", None
    history = [{"item": item, "value": 5}]
    yield "/v1/recommend", {"users": [user], "explain": True}
    yield "/v1/recommend", {"users": [user], "diversity": 0.3}
    yield "/v1/recommend", {"history": history, "explain": True}
    yield "/v1/predict", {"pairs": [{"user": user, "item": item}]}
    yield "/v1/predict", {"pairs": [{"user": user, "item": item}], "confidence": 0.9}
    yield "/v1/events", {"events": [{"user": user, "item": item, "value": 4}]}


def check(path: str, folder: Path) -> None:
    """Serve one model or index, and stop with the first answer that is not as it should be."""
    log = str(folder / "events.jsonl")
    command = [
        "recsys",
        "serve",
        path,
        "--port",
        ADDRESS[-4:],
        "--workers",
        "2",
        "--events",
        log,
    ]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    if answer("/health/ready")[0] == 200:
                        break
                except URLError:
                    pass
                if time.monotonic() > deadline:
                    raise SystemExit(f"{path} is not served.")
                time.sleep(0.1)
            asked = [(target, None) for target in PLAIN]
            is_model = answer("/v1/model")[0] == 200
            asked += of_model() if is_model else [("/v1/search?q=doctor", None)]
            for target, body in asked:
                status, found = answer(target, body)
                allowed = NOT_OF_ALL if is_model and "recommend/" not in target else ()
                if target == "/v1/model" and not is_model:
                    allowed = NOT_OF_ALL
                if status >= 300 and status not in allowed:
                    raise SystemExit(f"{path}: {target} {body}: {status} {found}")
            print(f"{path}: {len(asked)} requests")
        finally:
            process.terminate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(Path(sys.argv[1]).glob("model-*")):
            check(str(model), Path(folder))
