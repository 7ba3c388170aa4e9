"""The images are built and started: without Docker, behind a mirror and a proxy, as 65532, on a read-only root.

Run by `make test-images` alone: the first run fills artefacts/images and takes minutes; later ones use its layers.
`python -m benchmarks.images` measures sizes and compares two builds without any layer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.images import LIMITS_MB, PLACE, VARIANTS, Builder, Image, missing, published, sizes, start
from benchmarks.package_mirror import Mirror, package_mirror

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1500),
    pytest.mark.skipif("NIGHTSHIFT_IMAGES" not in os.environ, reason="minutes: `make test-images` builds images"),
]


@pytest.fixture(scope="module")
def mirror() -> Iterator[Mirror]:
    if lacks := missing():
        reason = f"building images needs {lacks}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    wheels = Path(os.environ.get("PIP_FIND_LINKS") or "/nonexistent")
    with package_mirror(PLACE / "packages", wheels if wheels.is_dir() else None) as made:
        yield made


@pytest.mark.parametrize("figure", LIMITS_MB)
def test_the_agents_image_is_small_and_starts_as_the_chart_starts_it(mirror: Mirror, figure: str) -> None:
    builder, (file, arguments) = Builder(PLACE, mirror), VARIANTS[figure]
    image: Image = builder.build(file, arguments, cached=True)
    assert image.config["User"] == "65532:65532"
    measured = sizes(builder, image)
    assert measured["mb"] <= LIMITS_MB[figure], measured
    assert measured["byte_code_files"] == 0
    seen = start(builder, image, file, PLACE)
    assert seen["user"] == 65532
    assert seen["node_user"] == 65532
    assert seen["writable"] == seen["node_writable"] == ["/tmp", "/var/lib/nightshift"]
    assert seen["bills"]["nightshift-agent.python.cdx.json"] == measured["distributions"]
    assert seen["bills"]["nightshift-agent.debian.cdx.json"] > 50


def test_the_kernel_workers_image_starts_and_has_its_compiler(mirror: Mirror) -> None:
    """Its packages come through the proxy that intercepts TLS."""
    builder, (file, arguments) = Builder(PLACE, mirror), VARIANTS["kernel_worker"]
    image = builder.build(file, arguments, cached=True)
    seen = start(builder, image, file, PLACE)
    assert (seen["user"], seen["writable"]) == (65532, ["/tmp", "/work"])
    assert seen["problems_listed"] > 10
    assert seen["torch"]


def test_a_published_image_is_pulled_only_where_its_publisher_signed_it(mirror: Mirror) -> None:
    builder, (file, arguments) = Builder(PLACE, mirror), VARIANTS["agent_without_models"]
    seen = published(builder, builder.build(file, arguments, cached=True))
    assert all(seen.values()), seen


def test_a_build_that_does_not_trust_the_mirrors_authority_fails(mirror: Mirror) -> None:
    """So the packages of the other tests came by TLS that was checked, and the secret was what allowed it."""
    elsewhere = {"DEBIAN_MIRROR": f"{mirror.url}/other"}
    with pytest.raises(AssertionError, match="certificate"):
        Builder(PLACE, mirror).build("agent", elsewhere, cached=True, trusts=False)
    assert not any(request.startswith("GET /other") for request in mirror.requests)
