# syntax=docker/dockerfile:1
# The command and the service, in two stages: the first has a compiler, the second has what it made.
#
#   docker build --tag recsys .
#   docker run --rm --volume models:/models recsys fit URL --out /models/first
#   docker run --rm --volume models:/models recsys versions promote /models/first
#   docker run --detach --volume models:/models --publish 127.0.0.1:8000:8000 recsys

FROM python:3.13-slim AS build

RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY lowrank lowrank
COPY recsys recsys
COPY data data

# Extras of pyproject.toml: the HTTP service, PostgreSQL, reports.
ARG EXTRAS=serve,postgres,report

RUN python -m venv /opt/recsys \
    && /opt/recsys/bin/pip install --no-cache-dir --no-compile ".[${EXTRAS}]" \
    && /opt/recsys/bin/python -c "from lowrank import kernels; assert kernels.backend().name == 'compiled'" \
    && /opt/recsys/bin/pip uninstall --yes pip

COPY deploy/slim.sh .
RUN sh slim.sh /opt/recsys


FROM python:3.13-slim

COPY --from=build /opt/recsys /opt/recsys
COPY deploy/nightly.sh /opt/recsys/bin/recsys-nightly

RUN useradd --system --uid 10001 --home-dir /models --no-create-home recsys \
    && install --directory --owner=recsys --group=recsys /models \
    && chmod 755 /opt/recsys/bin/recsys-nightly

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
