# syntax=docker/dockerfile:1
# Judges GPU kernels: torch, Triton and CUDA's compiler beside the judge. Built from the repository's root.
#
# The base image stands here by digest only: a build without CUDA_DIGEST ends with an invalid reference. It is found with
#   docker buildx imagetools inspect nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04 --format '{{.Manifest.Digest}}'
# (devel, not runtime: the judge compiles candidates with nvcc and runs compute-sanitizer on them)
ARG CUDA_DIGEST

FROM nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@${CUDA_DIGEST} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DEBIAN_FRONTEND=noninteractive
ARG PIP_INDEX_URL
WORKDIR /src
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3.12 python3.12-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3.12 -m venv /opt/nightshift
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY nightshift nightshift
RUN /opt/nightshift/bin/python -m pip install -c constraints.txt '.[kernels]' \
 && /opt/nightshift/bin/python -m pip uninstall --yes pip \
 && python3.12 -m compileall -q /opt/nightshift

FROM build AS sbom
ARG CYCLONEDX_VERSION=7.2.1
RUN python3.12 -m venv /opt/sbom \
 && /opt/sbom/bin/python -m pip install "cyclonedx-bom==${CYCLONEDX_VERSION}" \
 && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --of JSON -o /sbom.cdx.json /opt/nightshift

FROM nvcr.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@${CUDA_DIGEST}
ENV DEBIAN_FRONTEND=noninteractive
# python3.12-dev and gcc: Triton builds its launchers at run time
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3.12 python3.12-dev gcc \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nightshift /opt/nightshift
COPY --from=sbom /sbom.cdx.json /usr/share/sbom/nightshift-kernel-worker.cdx.json
# The root file system is read-only: caches and verdicts go below /work.
ENV PATH=/opt/nightshift/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/work TRITON_CACHE_DIR=/work/triton
WORKDIR /work
VOLUME ["/work", "/tmp"]
USER 65532:65532
ENTRYPOINT ["nightshift"]
CMD ["kernels", "problems"]
