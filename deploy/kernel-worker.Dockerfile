# syntax=docker/dockerfile:1
# Judges GPU kernels: torch, Triton and CUDA's compiler beside the judge. Built from the repository's root.
#
# The base image is given by digest: a build without CUDA_DIGEST ends with an invalid reference. It is found with
#   docker buildx imagetools inspect nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04 --format '{{.Manifest.Digest}}'
# (devel, not runtime: the judge compiles candidates with nvcc and runs compute-sanitizer on them)
# BASE replaces it as a whole; PYTHON is the name of its distribution's Python.
ARG CUDA_DIGEST
ARG BASE=nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@${CUDA_DIGEST}

# Python's headers and gcc: Triton builds its launchers at run time
FROM ${BASE} AS system
ARG PYTHON=python3.12
ARG DEBIAN_MIRROR
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh debian "${PYTHON}" "${PYTHON}-venv" "${PYTHON}-dev" gcc

FROM system AS build
ARG PYTHON=python3.12
ARG PIP_INDEX_URL
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh python kernels
COPY nightshift nightshift
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh ours

FROM system AS sbom
ARG PYTHON=python3.12
ARG PIP_INDEX_URL
ARG CYCLONEDX_VERSION=7.2.1
COPY --from=build /opt/nightshift /opt/nightshift
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh listing nightshift-kernel-worker

FROM system
COPY --from=build /opt/nightshift /opt/nightshift
COPY --from=sbom /usr/share/sbom /usr/share/sbom
# The root file system is read-only: caches and verdicts go below /work.
ENV PATH=/opt/nightshift/bin:$PATH PYTHONPYCACHEPREFIX=/tmp/pycache PYTHONUNBUFFERED=1 \
    HOME=/work TRITON_CACHE_DIR=/work/triton
WORKDIR /work
VOLUME ["/work", "/tmp"]
USER 65532:65532
ENTRYPOINT ["nightshift"]
CMD ["kernels", "problems"]
