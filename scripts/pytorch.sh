# SPDX-License-Identifier: Apache-2.0
# Benchmarks source this file. It makes an environment with the PyTorch with which results are compared. After
# require_pytorch, "${pytorch[@]}" starts its Python.

PYTORCH_VERSION=2.15.0

has_torch() { "$1" -c 'import numpy, torch' 2>/dev/null; }

# Uses PYTHON if it is set. Otherwise makes the environment once per user. It takes about 5 GB, because the package
# contains the CUDA libraries.
require_pytorch() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/slipstream/pytorch-$PYTORCH_VERSION python
  if [[ -n ${PYTHON:-} ]]; then
    has_torch "$PYTHON" || { echo "$PYTHON has no numpy and torch. Install them there, or unset PYTHON: then PyTorch $PYTORCH_VERSION is installed in $folder." >&2; exit 2; }
    python=$PYTHON
  else
    python=$folder/bin/python
    if ! has_torch "$python"; then
      echo "installing PyTorch $PYTORCH_VERSION in $folder" >&2
      python3 -m venv "$folder" && "$folder/bin/pip" install --quiet "torch==$PYTORCH_VERSION" numpy || {
        echo "PyTorch $PYTORCH_VERSION cannot be installed in $folder. Install python3-venv and check pip's connection, or set PYTHON to a Python that has numpy and torch." >&2
        exit 2
      }
    fi
  fi
  pytorch=("$python")
}
