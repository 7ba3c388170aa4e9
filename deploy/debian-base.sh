#!/bin/sh
# Writes a base image's file system of Debian packages alone: debian-base.sh FILE.tar [MIRROR].
# For BASE of the container files where no registry can be reached. Needs root and debootstrap.
set -eu
tar=$1
mirror=${2:-http://deb.debian.org/debian}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" "$mirror"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/var/cache/ldconfig/aux-cache
rm -rf "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/etc/*- "$root"/dev/*
rm -rf "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/tmp/*
rm -f "$root"/etc/resolv.conf "$root"/etc/hostname "$root"/etc/machine-id
find "$root" -name __pycache__ -prune -exec rm -rf {} +
tar --sort=name --numeric-owner --mtime=@0 -C "$root" -cf "$tar" .
