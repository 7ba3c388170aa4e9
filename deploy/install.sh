#!/bin/sh
# One step of an image's build:
#   install.sh debian PACKAGE…      from Debian, or Ubuntu
#   install.sh python EXTRAS        what /src/pyproject.toml requires with these extras, to /opt/nightshift
#   install.sh ours                 /src itself, over that
#   install.sh listing NAME         a bill of materials of /opt/nightshift and of the packages, to /usr/share/sbom
# PIP_INDEX_URL and DEBIAN_MIRROR name mirrors; security updates are at ${DEBIAN_MIRROR}-security. The secret `authority` is a PEM file: what signs a proxy or a mirror.
# What differs between two builds is removed: logs, caches, byte code, the machine's name.
set -eu
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
export PYTHONDONTWRITEBYTECODE=1 DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"
authority=/tmp/authority.pem
home=/opt/nightshift
tools=/tmp/tools
step=$1
shift

# apt reads it as a user of its own
if [ -s /run/secrets/authority ]; then install -m 644 /run/secrets/authority $authority; fi

apt() {
  set -- -o Acquire::Retries=3 "$@"
  if [ -s $authority ]; then set -- -o Acquire::https::CAInfo=$authority "$@"; fi
  if [ -n "${DEBIAN_MIRROR:-}" ]; then
    . /etc/os-release
    case $ID in
    ubuntu) updates="$DEBIAN_MIRROR $VERSION_CODENAME-security main universe" parts="main universe" ;;
    *) updates="$DEBIAN_MIRROR-security $VERSION_CODENAME-security main" parts="main" ;;
    esac
    printf 'deb %s\n' "$DEBIAN_MIRROR $VERSION_CODENAME $parts" "$updates" >/tmp/mirror.list
    set -- -o Dir::Etc::sourcelist=/tmp/mirror.list -o Dir::Etc::sourceparts=- "$@"
  fi
  apt-get -q "$@"
}

pip() {
  if [ -s $authority ]; then export PIP_CERT=$authority; fi
  [ -x $tools/bin/python ] || "${PYTHON:-python3}" -m venv $tools
  $tools/bin/python -m pip "$@"
}

case $step in
debian)
  apt update
  apt install --yes --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/cache/debconf/*-old
  rm -rf /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/log/* /etc/*- /tmp/*
  rm -rf /var/lib/systemd/catalog /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
  find / -xdev -name __pycache__ -prune -exec rm -rf {} +
  if [ -e /etc/machine-id ]; then : >/etc/machine-id; fi
  ;;
python)
  "${PYTHON:-python3}" -m venv --without-pip $home
  mkdir -p nightshift && touch nightshift/__init__.py
  pip --python $home/bin/python install -c constraints.txt ".${1:+[$1]}"
  rm -rf /tmp/* nightshift build *.egg-info
  ;;
ours)
  pip --python $home/bin/python install --no-deps --force-reinstall .
  $tools/bin/python -m pip --python $home/bin/python check
  rm -rf /tmp/* build *.egg-info
  find $home -name __pycache__ -prune -exec rm -rf {} +
  ;;
listing)
  pip install --quiet "cyclonedx-bom==$CYCLONEDX_VERSION"
  mkdir -p /usr/share/sbom
  $tools/bin/cyclonedx-py environment --output-reproducible --of JSON -o "/usr/share/sbom/$1.python.cdx.json" $home
  {
    echo '{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": ['
    dpkg-query -W -f '{"type": "library", "name": "${Package}", "version": "${Version}", "purl": "pkg:deb/debian/${source:Package}@${source:Version}?arch=${Architecture}"},\n' | sed '$s/,$//'
    echo ']}'
  } >"/usr/share/sbom/$1.debian.cdx.json"
  rm -rf /tmp/*
  ;;
*)
  echo "install.sh: no step is called $step" >&2
  exit 2
  ;;
esac
