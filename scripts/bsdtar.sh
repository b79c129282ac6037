#!/usr/bin/env bash
# The oracle tests read and write archives with bsdtar too. Install it where that is possible; do without it elsewhere.
command -v bsdtar >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq libarchive-tools >/dev/null 2>&1 && exit 0
fi
echo "bsdtar is not installed (Debian: apt-get install libarchive-tools): its oracle tests will be skipped" >&2
exit 0
