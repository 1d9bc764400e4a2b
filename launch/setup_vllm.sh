#!/usr/bin/env bash
# Makes the environment that vLLM runs in. It is not the learner's: the two pin different libraries.
#
#   launch/setup_vllm.sh [cpu|cuda] [FOLDER]      default: cpu .venv-vllm
#
# Then `--engine=vllm` finds it; for another FOLDER set METAAGENT_X_VLLM_PYTHON=FOLDER/bin/python.
# PYTHON chooses the interpreter (3.11 to 3.13, default python3). Takes 2 to 4 minutes; 2.5 GB (cpu).
set -euo pipefail
kind=${1:-cpu}
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${2:-$root/.venv-vllm}
requirements=$root/third_party/vllm/requirements-$kind.txt
[[ $kind == cpu || $kind == cuda ]] || { echo "$kind is neither cpu nor cuda" >&2; exit 2; }

"${PYTHON:-python3}" -m venv --clear "$folder"
pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@"; }
if [[ $kind == cpu ]]; then
  torch=$(grep -o '^torch==[^ ]*' "$requirements")
  # PyPI has no build of torch without CUDA. A machine that has one at hand is not asked to download another.
  pip install -q "$torch" 2>/dev/null || pip install -q "$torch" --extra-index-url https://download.pytorch.org/whl/cpu
fi
pip install -q -r "$requirements"
if [[ $kind == cpu ]]; then
  # Image, sound and video, which come built for CUDA and then fail to load ("operator torchvision::nms does not
  # exist"); and 1 GB of Triton, which has no CPU backend.
  pip uninstall -q -y torchvision torchaudio torchcodec triton
fi
"$folder/bin/python" -c 'import vllm; print("vLLM", vllm.__version__, "is ready")'
