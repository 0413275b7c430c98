#!/usr/bin/env bash
# Make a virtual environment with everything Sash and its tests need. The build of the package fetches the page's charts
# with npm, see deploy/page/hook.py.
#
# Two things come from Debian where they are missing and this may install them (as root): Python's venv module and a
# Java 17 runtime for Spark. Where it may not, it says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3.11}
VENV=${VENV:-.venv}

say() { printf 'setup: %s\n' "$*" >&2; }

debian() {  # debian PACKAGE WHY
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		say "installing $1: $2"
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null
	else
		say "please install $1 ($2), then run this again: sudo apt-get install $1"
		return 1
	fi
}

command -v "$PYTHON" >/dev/null || PYTHON=python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	say "Python 3.11 or newer is needed; $PYTHON is $("$PYTHON" --version)"
	exit 1
}

if [ ! -x "$VENV/bin/python" ]; then
	"$PYTHON" -c 'import ensurepip' 2>/dev/null || debian python3-venv "Python's venv module"
	"$PYTHON" -m venv "$VENV"
fi

"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'

if ! command -v java >/dev/null && [ -z "${JAVA_HOME:-}" ]; then
	debian openjdk-17-jre-headless "Spark's runtime" || say "without Java everything works but Spark"
fi

# Connect's tools for TypeScript, which one test uses.
if command -v npm >/dev/null; then
	mkdir -p build/node
	cp tests/connect/node/package.json build/node/
	npm install --prefix build/node --silent --no-progress --no-package-lock --no-audit --no-fund ||
		say "without Connect's packages of npm, its test for TypeScript is skipped"
else
	say "without Node and npm, the test of Connect for TypeScript is skipped"
fi
