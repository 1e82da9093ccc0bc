# SPDX-License-Identifier: Apache-2.0
# Sourced by benchmarks. Finds PyTorch with the distribution's best BLAS, and installs both if the user may. After
# require_pytorch, "${pytorch[@]}" starts its Python.

# The first Python with numpy and PyTorch: only PYTHON if it is set, else python3 in PATH, else the distribution's.
python_with_torch() {
  local candidate
  for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    "$candidate" -c 'import numpy, torch' 2>/dev/null && { command -v "$candidate"; return; }
  done
  return 1
}

require_pytorch() {
  local python openmp as_root=()
  ((EUID == 0)) || as_root=(sudo)
  if ! python_with_torch >/dev/null || [[ -z $(find /usr/lib -maxdepth 2 -type d -name openblas-openmp 2>/dev/null) ]]; then
    if command -v apt-get >/dev/null && { ((EUID == 0)) || command -v sudo >/dev/null; }; then
      echo "installing python3-torch, python3-numpy and libopenblas0-openmp" >&2
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends python3-torch \
        python3-numpy libopenblas0-openmp </dev/null >/dev/null || true
    fi
  fi
  python=$(python_with_torch) || { echo "none of ${PYTHON:-python3 /usr/bin/python3} has numpy and torch. Install python3-torch, or set PYTHON to a Python that has them." >&2; exit 2; }
  # Debian's PyTorch uses the installed BLAS, and the reference BLAS is twenty times slower. Other PyTorch builds
  # contain their own BLAS and ignore the path.
  openmp=$(find /usr/lib -maxdepth 2 -type d -name openblas-openmp 2>/dev/null | head -n 1)
  [[ -n $openmp ]] || { echo "no OpenBLAS for PyTorch. Install libopenblas0-openmp." >&2; exit 2; }
  pytorch=(env "LD_LIBRARY_PATH=$openmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$python")
}
