"""The private server that tests of PostgreSQL use."""

from __future__ import annotations

import subprocess

import postgres as private


def psql(uri: str, sql: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(private.programs() / "psql"), "-X", "-A", "-t", "-c", sql, uri]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment or None
    )


def test_the_server_listens_on_this_machine_and_wants_the_password(postgres_server):
    uri, settings = postgres_server.uri, postgres_server.environment
    assert psql(uri, "SELECT current_user, 1 + 1").stdout == "shop|2\n"
    assert psql(uri, "SHOW listen_addresses").stdout == "localhost\n"
    wrong = psql(uri.replace(private.PASSWORD, "guess"), "SELECT 1")
    assert wrong.returncode == 2
    assert "password authentication failed" in wrong.stderr
    found = psql(
        "postgresql://shop@localhost/shop", "SELECT current_database()", **settings
    )
    assert found.stdout == "shop\n"
