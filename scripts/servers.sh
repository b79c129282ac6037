#!/usr/bin/env bash
# The programs that the tests run against, where they can be installed: bsdtar, nginx, sshd, strace, SLURM, Chromium and
# the library of FUSE from the system's packages, azurite and s3rver from npm into .servers. Nothing is started here, and nothing is needed: tests of what is
# absent are skipped, and say so. SeaweedFS and fake-gcs-server come with the test environment.
cd "$(dirname "$0")/.." || exit 0
AZURITE=3.35.0
S3RVER=3.7.1
PATH=$PATH:/usr/sbin:/usr/local/sbin

missing=()
command -v bsdtar >/dev/null || missing+=(libarchive-tools)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v sshd >/dev/null || missing+=(openssh-server)
command -v ssh >/dev/null || missing+=(openssh-client)
command -v strace >/dev/null || missing+=(strace)
command -v munged >/dev/null || missing+=(munge)
command -v slurmctld >/dev/null || missing+=(slurmctld)
command -v slurmd >/dev/null || missing+=(slurmd)
command -v sbatch >/dev/null || missing+=(slurm-client)
command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core) # the viewer's page, driven by playwright
command -v firefox-esr >/dev/null || missing+=(firefox-esr fonts-dejavu-core)
ldconfig -p 2>/dev/null | grep -q 'libfuse3*\.so' || missing+=(libfuse2 libfuse3-3) # file systems of their own processes
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d # packages ask it whether their service may be started
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
        trap 'rm -f $policy' EXIT
    fi
    apt-get update -qq >/dev/null 2>&1
    for package in "${missing[@]}"; do
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1
    done
fi

absent() {
    [ -x ".servers/node_modules/.bin/$1" ] || command -v "$1" >/dev/null || return 0
    return 1
}

wanted=()
absent azurite-blob && wanted+=("azurite@$AZURITE")
absent s3rver && wanted+=("s3rver@$S3RVER")
if [ ${#wanted[@]} -gt 0 ] && command -v npm >/dev/null; then
    mkdir -p .servers
    # a registry that does not answer is asked again for a quarter of an hour
    timeout 300 npm install --prefix .servers --no-audit --no-fund --no-update-notifier --loglevel=error "${wanted[@]}" >/dev/null 2>&1
fi

for name in bsdtar nginx sshd ssh strace munged slurmctld slurmd sbatch chromium firefox-esr; do
    command -v $name >/dev/null || echo "$name is not installed: its tests will be skipped" >&2
done
ldconfig -p 2>/dev/null | grep -q 'libfuse3*\.so' || echo "libfuse is not installed: its tests will be skipped" >&2
for name in azurite-blob s3rver; do
    absent $name && echo "$name is not installed (npm): its tests will be skipped" >&2
done
exit 0
