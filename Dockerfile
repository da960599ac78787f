# syntax=docker/dockerfile:1
# Two images of one installation: the service, without a shell, and the whole command.
#
#   docker build --target full --tag recsys .
#   docker build --tag recsys-service .
#   docker run --rm --volume models:/models recsys fit URL --out /models/first
#   docker run --rm --volume models:/models recsys versions promote /models/first
#   docker run --detach --volume models:/models --publish 127.0.0.1:8000:8000 recsys-service

FROM debian:12-slim AS base

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*


FROM base AS build

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY lowrank lowrank
COPY recsys recsys
COPY data data

# Extras of pyproject.toml: the HTTP service, PostgreSQL, reports.
ARG EXTRAS=serve,postgres,report

RUN python3 -m venv /opt/recsys \
    && /opt/recsys/bin/pip install --no-cache-dir --no-compile ".[${EXTRAS}]" \
    && /opt/recsys/bin/python -c "from lowrank import kernels; assert kernels.backend().name == 'compiled'" \
    && install --directory --owner=10001 --group=10001 /models

COPY deploy/slim.sh deploy/check.py ./


FROM build AS build-full
RUN sh slim.sh /opt/recsys full


FROM build AS build-service
RUN sh slim.sh /opt/recsys service /service


FROM base AS full

COPY --from=build-full /opt/recsys /opt/recsys
COPY --from=build-full --chown=10001:10001 /models /models
COPY --chmod=755 deploy/nightly.sh /opt/recsys/bin/recsys-nightly

ENV PATH=/opt/recsys/bin:$PATH \
    PYTHONUNBUFFERED=1

USER 10001:10001
WORKDIR /models
VOLUME /models

ENTRYPOINT ["recsys"]
CMD ["--help"]


# Python, the libraries that it links to, and the service: no shell, no package manager.
FROM scratch AS service

COPY --from=build-service /service /
COPY --from=build-service --chown=10001:10001 /models /models

ENV PATH=/opt/recsys/bin:$PATH \
    PYTHONUNBUFFERED=1

USER 10001:10001
WORKDIR /models
VOLUME /models
EXPOSE 8000

HEALTHCHECK --interval=30s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]

ENTRYPOINT ["recsys"]
CMD ["serve", "/models/latest", "--host", "0.0.0.0", "--port", "8000"]
