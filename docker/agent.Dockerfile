# SPDX-License-Identifier: Apache-2.0
#
# samovar-agent, beside the engines of a node.
#   docker build -f docker/agent.Dockerfile -t samovar-agent .

FROM docker.io/library/debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
        gcc g++ libc6-dev cmake ninja-build pkg-config \
        libuv1-dev libsimdjson-dev libxxhash-dev libyaml-dev libzmq3-dev libhiredis-dev liburing-dev node-llhttp \
 && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSAMOVAR_TESTS=OFF \
 && ninja -C /build samovar-agent \
 && strip /build/bin/samovar-agent

FROM docker.io/library/debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
        libuv1 libsimdjson14 libxxhash0 libyaml-0-2 libzmq5 libhiredis0.14 liburing2 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 65532 -g 65532 -m 700 /run/samovar /var/lib/samovar-agent /var/lib/samovar-ssd
COPY --from=build /build/bin/samovar-agent /usr/bin/
# For engines: mount or copy it, and set PYTHONPATH (its README says how vLLM is told).
COPY kvtier/connector/python/samovar_vllm /usr/share/samovar/python/samovar_vllm

# A number, so that "must not run as root" can be checked without reading /etc/passwd.
USER 65532:65532

# How text and tokens are joined, kept over a restart; keyed hashes and lengths, no text.
ENV SAMOVAR_AGENT_STATE_DIR=/var/lib/samovar-agent SAMOVAR_AGENT_ADMIN_PORT=9092
# Tiers are on with SAMOVAR_AGENT_CPU_BYTES; engines reach them by this volume, which they share.
# What is kept on SSD is prompts' keys and values: nobody else's business.
VOLUME /run/samovar /var/lib/samovar-agent /var/lib/samovar-ssd

# The agent's own life: one that waits for its engine or for Redis must not be restarted.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/${SAMOVAR_AGENT_ADMIN_PORT} && printf 'GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r line <&3 && [[ $line == 'HTTP/1.1 200'* ]]"]

# SIGTERM saves the state and gives up the lease, at once.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/samovar-agent"]
