#!/usr/bin/env bash
# Runs the checks on Debian 13, with its Python 3.13 and compiler and with the newest releases of the libraries. The
# system has neither ps nor Java. Needs root, debootstrap, and some 3 GB.
#
# usage: tests/other_python.sh [COMMAND]...    by default: make demo test
#        tests/other_python.sh .venv/bin/python -m pytest tests/lowrank
# ROOT names the folder of the system, by default build/debian-13. It is laid once; remove it to start again.
# TESTER=root runs the command as root, not as an ordinary user. SUITE=forky takes another release of Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${SUITE:-trixie}
root=$(realpath --canonicalize-missing "${ROOT:-build/debian-13}")
tester=${TESTER:-tester}
packages=ca-certificates,g++,git,make,python3-dev,python3-venv
[ "$(id -u)" = 0 ] || { echo "Run this as root: it lays a system into $root." >&2; exit 2; }
[ $# -gt 0 ] || set -- make demo test

if [ ! -e "$root/.laid" ]; then
  echo "== Laying Debian's $suite into $root"
  mkdir -p "$root"
  debootstrap --variant=minbase --include="$packages" "$suite" "$root" "" /usr/share/debootstrap/scripts/sid > "$root.log" \
    || { tail "$root.log"; exit 1; }
  chroot "$root" useradd --create-home tester
  touch "$root/.laid"
fi
# The certificates and settings of pip are those of this machine.
cp /etc/resolv.conf "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

home=$(chroot "$root" sh -c "echo ~$tester")
mkdir -p "$root$home/source"
# Files that no longer exist would be tested, too.
find "$root$home/source" -mindepth 1 -maxdepth 1 ! -name .venv ! -name build -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard \
  | tar --create --null --files-from=- --ignore-failed-read 2>/dev/null \
  | tar --extract --directory "$root$home/source"
if [ -n "${RECSYS_DATASETS:-}" ]; then
  mkdir -p "$root/datasets"
  cp --recursive --update "$RECSYS_DATASETS/." "$root/datasets"
fi
chroot "$root" chown -R "$tester:" "$home/source"

# Processes, terminals and shared memory of its own, which end with the command.
run='
mount -t proc proc "$0/proc"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts"
mount --bind "$0/dev/pts/ptmx" "$0/dev/ptmx"
mount -t tmpfs tmpfs "$0/dev/shm"
root=$0 tester=$1 home=$2
shift 2
cd "$root$home/source"
chroot --userspec="$tester" "$root" /usr/bin/env --ignore-environment \
  HOME="$home" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
  RECSYS_DATASETS=/datasets sh -c "cd $home/source && exec \"\$@\"" sh "$@"
status=$?  # this shell waits for processes whose parents have ended
exit $status
'
exec unshare --mount --pid --fork bash -c "$run" "$root" "$tester" "$home" "$@"
