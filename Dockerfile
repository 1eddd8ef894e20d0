# An image that serves, with a key or open to whoever reaches the port (docs/installing.md):
#   docker build -t chaski .
#   docker run -p 127.0.0.1:11434:11434 -e CHASKI_OPEN=1 -v chaski:/var/lib/chaski chaski
FROM python:3.13-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY native native
COPY chaski chaski
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels .

FROM python:3.13-slim-bookworm
# The extras of pyproject.toml that it has; for several machines: --build-arg EXTRAS=all,cluster
ARG EXTRAS=all
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[${EXTRAS}]" && rm -rf /wheels \
    && useradd --system --uid 999 --user-group --create-home --home-dir /var/lib/chaski chaski
USER 999
ENV HOME=/var/lib/chaski OLLAMA_MODELS=/var/lib/chaski/models OLLAMA_HOST=0.0.0.0:11434
VOLUME /var/lib/chaski
EXPOSE 11434
ENTRYPOINT ["chaski"]
CMD ["serve"]
