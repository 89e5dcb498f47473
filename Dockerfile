# Debian 12 without a GPU, with all packages that the README's commands need.
#
#     docker build -t tilegrad .
#     docker run --rm tilegrad                         # tools/dev quickstart: build, check a gradient, train, sample
#     docker run --rm tilegrad tools/dev test          # build, and run every test
#     docker run --rm -it tilegrad bash
FROM debian:12
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ cmake ninja-build libgtest-dev libxxhash-dev libstb-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /tilegrad
COPY . .
CMD ["tools/dev", "quickstart"]
