#!/bin/sh
# Lay a Debian folder with PostgreSQL and the installed command, for tests/test_debian.py.
#
#   sudo sh tests/debian.sh build/debian
#
# The packages stay in the folder from one time to the next; the command is installed again, from the
# file WHEEL if one is named, else from the source, which takes minutes.
set -eu
folder=$1
if [ ! -e "$folder/usr/bin/psql" ]; then
    # What the Dockerfile installs, and a database.
    debootstrap --variant=minbase \
        --include=ca-certificates,g++,postgresql,python3,python3-dev,python3-venv \
        bookworm "$folder" http://deb.debian.org/debian
fi
inside() {
    # A private /proc, which the folder loses with the command.
    # shellcheck disable=SC2016  # the words are of the inner shell
    unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$folder" "$@"
}
cp /etc/resolv.conf "$folder/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
rm -rf "$folder/source"
mkdir -p "$folder/source"
cp -r pyproject.toml CMakeLists.txt README.md LICENSE lowrank recsys data deploy "$folder/source/"
inside sh -c 'id recsys || useradd --uid 10001 --create-home recsys' > /dev/null 2>&1
inside python3 -m venv /opt/recsys
package=/source
if [ -n "${WHEEL:-}" ]; then
    cp "$WHEEL" "$folder/source/"
    package=/source/$(basename "$WHEEL")
fi
inside /opt/recsys/bin/pip install --quiet --no-compile --force-reinstall --no-deps "$package"
inside /opt/recsys/bin/pip install --quiet --no-compile "$package[serve,postgres]"
install --mode=755 deploy/nightly.sh "$folder/opt/recsys/bin/recsys-nightly"
