# syntax=docker/dockerfile:1
# The agent and the node agent. Built from the repository's root; deploy/README.md has the command.
#
# The base image stands here by digest only: a build without PYTHON_DIGEST ends with an invalid reference. It is found,
# and checked against Docker's own signature, with
#   docker buildx imagetools inspect python:3.12-slim-bookworm --format '{{.Manifest.Digest}}'
ARG PYTHON_DIGEST

FROM python:3.12-slim-bookworm@${PYTHON_DIGEST} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# a mirror and its authorities, in an air-gapped place
ARG PIP_INDEX_URL
WORKDIR /src
RUN python -m venv /opt/nightshift
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY nightshift nightshift
RUN /opt/nightshift/bin/python -m pip install -c constraints.txt '.[llm,mcp,spans]' \
 && /opt/nightshift/bin/python -m pip uninstall --yes pip \
 && python -m compileall -q /opt/nightshift

# What is inside, as CycloneDX: every distribution of the environment with its version and licence.
FROM build AS sbom
ARG CYCLONEDX_VERSION=7.2.1
RUN python -m venv /opt/sbom \
 && /opt/sbom/bin/python -m pip install "cyclonedx-bom==${CYCLONEDX_VERSION}" \
 && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --of JSON -o /sbom.cdx.json /opt/nightshift

FROM python:3.12-slim-bookworm@${PYTHON_DIGEST}
# journalctl, for a node's kernel log
RUN apt-get update \
 && apt-get install --yes --no-install-recommends systemd \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/nightshift /opt/nightshift
COPY --from=sbom /sbom.cdx.json /usr/share/sbom/nightshift-agent.cdx.json
# The root file system is read-only: nothing is compiled, cached or written but below /var/lib/nightshift and /tmp.
ENV PATH=/opt/nightshift/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
VOLUME ["/var/lib/nightshift", "/tmp"]
USER 65532:65532
EXPOSE 8471 9400
ENTRYPOINT ["nightshift"]
CMD ["run"]
