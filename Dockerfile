# Two images from one file: --target cpu and --target cuda. Both hold Python, the pinned serving packages and Glossa, and
# neither torch nor onnx. `make image` builds them with docker or buildah; only syntax that buildah 1.28 knows is used.
#
#   docker run --read-only --tmpfs /tmp -v ./bundle:/models/demo:ro -p 50051:50051 -p 9464:9464 glossa demo=/models/demo
#
# BASE_IMAGE: any Debian 12 or newer with python3 3.11 and its venv module; pin it by digest (python@sha256:…) for a
# release. The cuda image needs nothing but the driver from its host: CUDA and cuDNN come as pinned wheels.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# `make image` fetches the wheels with pip as it is set up outside, sets this and builds without a network.
ARG PIP_NO_INDEX=
ENV PIP_NO_INDEX=${PIP_NO_INDEX} PIP_FIND_LINKS=/context/build/wheels \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/glossa
RUN --mount=type=bind,source=.,target=/context \
    /opt/build/bin/pip install --quiet --require-hashes -r /context/requirements/build.txt
COPY . /src
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /opt/wheel /src

FROM build AS build-cpu
RUN --mount=type=bind,source=.,target=/context \
    /opt/build/bin/pip --python /opt/glossa/bin/python install --quiet --no-deps --report /opt/pinned.json \
      --require-hashes -r /context/requirements/serve.txt -r /context/requirements/otel.txt -r /context/requirements/oidc.txt
ARG REVISION=
ARG CREATED=
RUN --mount=type=bind,source=.,target=/context /src/deploy/finish.sh cpu

FROM ${BASE_IMAGE} AS runtime
ARG BASE_IMAGE
ARG VERSION=0
ARG REVISION=
ARG CREATED=
# image.sh adds what depends on where it runs: source, url, documentation and the digest of the base.
LABEL org.opencontainers.image.title="Glossa" \
      org.opencontainers.image.description="Serves translation and generation over gRPC on ONNX Runtime" \
      org.opencontainers.image.vendor="Glossa" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# Inside a container every interface is the container's own, so both ports listen on all of them.
ENV PATH=/opt/glossa/bin:$PATH HOME=/tmp TMPDIR=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    GLOSSA_HOST=0.0.0.0 GLOSSA_HTTP_HOST=0.0.0.0 GLOSSA_COMMIT=${REVISION}
WORKDIR /models
USER 65532:65532
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["glossa", "healthcheck"]
ENTRYPOINT ["glossa", "serve"]

FROM runtime AS cpu
COPY --from=build-cpu /opt/glossa /opt/glossa

# After `cpu`, because buildah builds every stage above the one it is asked for.
FROM build AS build-cuda
RUN --mount=type=bind,source=.,target=/context \
    /opt/build/bin/pip --python /opt/glossa/bin/python install --quiet --no-deps --report /opt/pinned.json \
      --require-hashes -r /context/requirements/gpu.txt -r /context/requirements/otel.txt -r /context/requirements/oidc.txt
ARG REVISION=
ARG CREATED=
RUN --mount=type=bind,source=.,target=/context /src/deploy/finish.sh cuda

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/glossa /opt/glossa
