#!/usr/bin/env bash
# Makes .venv at the root with everything pinned and Grace built in it; `dev` adds what tests and benchmarks need.
# Run again, it does only what changed.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "error: Grace needs Python 3.11 or newer; found $("$python" --version 2>&1 || echo none). Name one: make PYTHON=python3.12" >&2
  exit 2
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "error: $python lacks the venv module; install it (Debian: apt-get install python3-venv)" >&2
  exit 2
fi
compiler=${CXX:-c++}
if ! echo 'int main() { auto f = []<typename T>(T x) { return x; }; return f(0); }' |
  "$compiler" -std=c++20 -x c++ - -o /dev/null 2>/dev/null; then
  echo "error: Grace needs a C++20 compiler (g++ 11, clang 14 or newer); '$compiler' is none. Debian: apt-get install g++; or name one: make CXX=g++-12" >&2
  exit 2
fi

needs=(-r requirements.txt)
if [ "${1:-}" = dev ]; then needs+=(-r requirements-dev.txt); fi
stamp=.venv/.grace-stamp
wanted=$(cat requirements.txt requirements-dev.txt scripts/setup.sh pyproject.toml CMakeLists.txt cpp/* | sha256sum)
# What is there for tests is there for the rest as well.
if [ -x .venv/bin/grace ] && grep -qxF -e "dev $wanted" -e "${1:-} $wanted" "$stamp" 2>/dev/null; then exit 0; fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  # Where pip can find it and no GPU is there, the CPU build is a tenth of the size.
  if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    pip install torch==2.13.0
  else
    pip install 'torch==2.13.0+cpu' 2>/dev/null || pip install torch==2.13.0
  fi
fi
pip install -q "${needs[@]}"
pip install -q --no-build-isolation --no-deps -e .
echo "${1:-} $wanted" >"$stamp"
