# SPDX-License-Identifier: Apache-2.0
#
# samovar-sim, the simulated engine: for trying the router without a GPU. Not for production.
#   docker build -f docker/sim.Dockerfile -t samovar-sim .

FROM docker.io/library/debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
        gcc g++ libc6-dev cmake ninja-build pkg-config \
        libuv1-dev libsimdjson-dev libxxhash-dev libyaml-dev libzmq3-dev libhiredis-dev liburing-dev libcriterion-dev \
        node-llhttp \
 && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
 && ninja -C /build samovar-sim \
 && strip /build/bin/samovar-sim

FROM docker.io/library/debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libuv1 libsimdjson14 libxxhash0 libzmq5 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 65532 -g 65532 -m 700 /run/samovar
COPY --from=build /build/bin/samovar-sim /usr/bin/
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["/usr/bin/samovar-sim"]
CMD ["--host", "0.0.0.0", "--port", "8000", "--model", "sim"]
