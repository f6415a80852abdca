# SPDX-License-Identifier: Apache-2.0
#
# samovar-router and the samovar command.
#   docker build -f docker/router.Dockerfile -t samovar-router .

FROM docker.io/library/debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
        gcc g++ libc6-dev cmake ninja-build pkg-config \
        libuv1-dev libsimdjson-dev libxxhash-dev libyaml-dev libzmq3-dev libhiredis-dev liburing-dev node-llhttp \
 && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSAMOVAR_TESTS=OFF \
 && ninja -C /build samovar-router samovar \
 && strip /build/bin/samovar-router /build/bin/samovar

FROM docker.io/library/debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libuv1 libsimdjson14 libxxhash0 libyaml-0-2 libhiredis0.14 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /build/bin/samovar-router /build/bin/samovar /usr/bin/

# A number, so that "must not run as root" can be checked without reading /etc/passwd.
USER 65532:65532

# A container's loopback is its own: the OpenAI endpoint listens on all of its addresses. The admin
# listener stays on loopback until SAMOVAR_ADMIN_HOST says otherwise.
ENV SAMOVAR_HOST=0.0.0.0 SAMOVAR_PORT=8080
EXPOSE 8080

# The router's own life, not its workers': a router without workers must not be restarted.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/${SAMOVAR_PORT} && printf 'GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r line <&3 && [[ $line == 'HTTP/1.1 200'* ]]"]

# SIGTERM drains; the runtime's grace period should be longer than the longest answer.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/samovar-router"]
