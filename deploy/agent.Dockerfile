# syntax=docker/dockerfile:1
# The agent and the node agent. Built from the repository's root; deploy/README.md has the command.
#
# The base image is given by digest: a build without PYTHON_DIGEST ends with an invalid reference. It is found,
# and checked against Docker's own signature, with
#   docker buildx imagetools inspect python:3.12-slim-bookworm --format '{{.Manifest.Digest}}'
# BASE replaces it as a whole, by another image with Python 3.11 or newer, its venv module and apt.
ARG PYTHON_DIGEST
ARG BASE=docker.io/library/python:3.12-slim-bookworm@${PYTHON_DIGEST}

# journalctl, for a node's kernel log
FROM ${BASE} AS system
ARG DEBIAN_MIRROR
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh debian systemd

FROM ${BASE} AS build
ARG PIP_INDEX_URL
# llm (a language model reads beside), mcp (the server at /mcp), spans (OpenTelemetry); none: the daemon alone
ARG EXTRAS=llm,mcp,spans
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh python "${EXTRAS}"
COPY nightshift nightshift
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh ours

# What is inside, as CycloneDX: Python's distributions with their licences, and Debian's packages.
FROM system AS sbom
ARG PIP_INDEX_URL
ARG CYCLONEDX_VERSION=7.2.1
COPY --from=build /opt/nightshift /opt/nightshift
RUN --mount=type=bind,source=deploy/install.sh,target=/install.sh --mount=type=secret,id=authority \
    sh /install.sh listing nightshift-agent

FROM system
COPY --from=build /opt/nightshift /opt/nightshift
COPY --from=sbom /usr/share/sbom /usr/share/sbom
# The root file system is read-only: nothing is compiled, cached or written but below /var/lib/nightshift and /tmp.
ENV PATH=/opt/nightshift/bin:$PATH PYTHONPYCACHEPREFIX=/tmp/pycache PYTHONUNBUFFERED=1 HOME=/tmp
VOLUME ["/var/lib/nightshift", "/tmp"]
USER 65532:65532
EXPOSE 8471 9400
ENTRYPOINT ["nightshift"]
CMD ["run"]
