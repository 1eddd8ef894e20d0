# Server image. It needs API keys, or CHASKI_OPEN=1 to accept every client (docs/installing.md):
#   docker build -t chaski .
#   docker run -p 127.0.0.1:11434:11434 -e CHASKI_OPEN=1 -v chaski:/var/lib/chaski chaski
FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY native native
COPY chaski chaski
# Extras of pyproject.toml to install; for several machines: --build-arg EXTRAS=all,cluster
ARG EXTRAS=all
RUN python3 -m venv /opt/chaski && /opt/chaski/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 999 --user-group --create-home --home-dir /var/lib/chaski chaski
COPY --from=build /opt/chaski /opt/chaski
USER 999
ENV PATH=/opt/chaski/bin:$PATH HOME=/var/lib/chaski
ENV OLLAMA_MODELS=/var/lib/chaski/models OLLAMA_HOST=0.0.0.0:11434
VOLUME /var/lib/chaski
EXPOSE 11434
ENTRYPOINT ["chaski"]
CMD ["serve"]
