"""The container images, built and started without Docker: `python -m benchmarks.images`.

buildah builds the container files in a chroot, as root. The base is made of Debian packages alone, since no
registry is asked. Packages come from a mirror, for the kernel worker through a proxy that intercepts TLS. Both are
signed by an authority that only the build's secret names. Each image is built twice, once without any layer, and
is started as the chart starts it: as 65532, on a read-only root, with its volumes alone to write to. One is pushed
to a registry on this machine, signed, and pulled by its digest. Wheels in the folder PIP_FIND_LINKS go before the
index's: where that has a torch for CPUs, so has the kernel worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detect_held_out import commit
from benchmarks.image_registry import Publisher, Signer, registry
from benchmarks.package_mirror import Mirror, package_mirror
from benchmarks.report import RESULTS, write
from tests.processes import free_port

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "artefacts" / "images"
USER = "65532:65532"
STARTED_S = 120.0
NEEDED = ("buildah", "debootstrap", "unshare", "skopeo", "docker-registry", "gpg")
AGENT, WORKER = "agent", "kernel-worker"
VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "agent_without_models": (AGENT, {"EXTRAS": ""}),
    "agent": (AGENT, {}),
    "kernel_worker": (WORKER, {"PYTHON": "python3.11"}),
}
"""By figure: the file, and the arguments that it is built with beside the base."""


VOLUMES = ("/", "/tmp", "/var/lib/nightshift", "/work")
LIMITS_MB = {"agent_without_models": 350.0, "agent": 450.0}


def missing() -> str:
    """What this machine lacks to build images; empty: nothing."""
    lacks = [name for name in NEEDED if shutil.which(name) is None]
    return "root" if os.geteuid() != 0 else ", ".join(lacks)


@dataclass(frozen=True)
class Image:
    """A built image: its id is the digest of its configuration, which names the digests of its layers."""

    id: str
    digest: str
    bytes: int
    layers: tuple[str, ...]
    config: Mapping[str, Any]


class Builder:
    """buildah with a store of its own below `place`."""

    def __init__(self, place: Path, mirror: Mirror) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._place, self._mirror = place, mirror
        self._authority = place / "authority.pem"
        self._authority.write_bytes(mirror.authority)

    def _buildah(self, *words: str, log: Path | None = None) -> str:
        command = ["buildah", "--root", str(self._place / "store"), "--runroot", str(self._place / "run"), *words]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": "/var/tmp",
        }
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        if log is not None:
            log.write_text(ran.stdout + ran.stderr)
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
        return ran.stdout.strip()

    def base(self) -> str:
        """`name@digest` of the base of Debian's packages, made at most once."""
        name, tar = "localhost/debian-base", self._place / "base.tar"
        if not tar.exists():
            script = ["sh", str(ROOT / "deploy/debian-base.sh"), str(tar)]
            with (self._place / "base.log").open("wb") as log:
                subprocess.run(script, stdout=log, stderr=subprocess.STDOUT, check=True)
        if not self._buildah("images", "--quiet", "--filter", f"reference={name}"):
            container = self._buildah("from", "scratch")
            self._buildah("add", container, str(tar), "/")
            self._buildah("commit", "--rm", "--timestamp", "0", container, name)
        return f"{name}@{self._inspect(name)['FromImageDigest']}"

    def build(self, file: str, arguments: Mapping[str, str], *, cached: bool, trusts: bool = True) -> Image:
        """`trusts`: whether the build is given the authority that signs the mirror and the proxy."""
        name = f"localhost/{file}"
        given = {"BASE": self.base(), **self._network(file), **arguments}
        words = [
            "build",
            "--timestamp",
            "0",
            "--file",
            f"deploy/{file}.Dockerfile",
            "--tag",
            name,
            "--network",
            "host",
        ]
        words += ["--layers", *(() if cached else ("--no-cache",))]
        words += ["--secret", f"id=authority,src={self._authority}"] if trusts else []
        words += [word for pair in given.items() for word in ("--build-arg", "=".join(pair))]
        self._buildah(*words, ".", log=self._place / f"{file}.log")
        return self.image(name)

    def _network(self, file: str) -> Mapping[str, str]:
        """A mirror for the agent, a proxy for the kernel worker."""
        if file == AGENT:
            url = self._mirror.url
            return {"PIP_INDEX_URL": f"{url}/simple", "DEBIAN_MIRROR": f"{url}/debian"}
        proxy = self._mirror.proxy
        return {"http_proxy": proxy, "https_proxy": proxy, "HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}

    def image(self, name: str) -> Image:
        told = self._inspect(name)
        listed = json.loads(self._buildah("images", "--json", name))[0]
        oci = told["OCIv1"]
        sizes = json.loads(told["Manifest"])["layers"]
        return Image(
            told["FromImageID"],
            told["FromImageDigest"],
            sum(layer["size"] for layer in sizes),
            tuple(oci["rootfs"]["diff_ids"]),
            {**oci["config"], "listed": listed.get("size", "")},
        )

    def _inspect(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", name))
        return told

    def push(self, image: Image, place: str, trust: Path) -> str:
        """To `host:port/repository:tag`; returns the digest that the registry has it by."""
        file = self._place / "pushed"
        self._buildah("push", "--cert-dir", str(trust), "--digestfile", str(file), image.id, f"docker://{place}")
        return file.read_text().strip()

    @contextmanager
    def mounted(self, image: Image) -> Iterator[Path]:
        """The image's file system, read-write: who runs in it makes it read-only."""
        container = self._buildah("from", image.id)
        try:
            yield Path(self._buildah("mount", container))
        finally:
            self._buildah("rm", container)


@contextmanager
def running(
    root: Path,
    image: Image,
    arguments: Sequence[str],
    log: Path,
    *,
    more: Mapping[str, str] | None = None,
    program: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """The image's program (or another in it) as its user on a read-only root; its volumes alone can be written
    to."""
    environment = dict(entry.split("=", 1) for entry in image.config["Env"]) | dict(more or {})
    user, group = image.config["User"].split(":")
    volumes = " ".join(
        f"&& mkdir -p {root}{path} && mount -t tmpfs -o mode=0700,uid={user},gid={group} tmpfs {root}{path}"
        for path in sorted(image.config["Volumes"])
    )
    readonly = f"mount --bind {root} {root} {volumes} && mount -t proc proc {root}/proc"
    readonly += f" && mount --bind /dev {root}/dev && mount -o remount,ro,bind {root}"
    words = [*(program or image.config["Entrypoint"]), *(arguments or image.config.get("Cmd") or [])]
    inside = ["chroot", f"--userspec={image.config['User']}", str(root), "/usr/bin/env", "-i"]
    inside += [f"{name}={value}" for name, value in environment.items()]
    script = f'{readonly} && exec "$@"'
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *inside, *words],
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def answers(url: str, process: subprocess.Popen[bytes], log: Path) -> float:
    """Seconds until the URL answers 200."""
    import urllib.error
    import urllib.request

    began_s = time.monotonic()
    while time.monotonic() - began_s < STARTED_S:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return time.monotonic() - began_s
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise AssertionError(f"{url} did not answer within {STARTED_S} s: {log.read_text()[-4000:]}")


def start(builder: Builder, image: Image, file: str, place: Path) -> dict[str, Any]:
    """Starts an image as the chart does: the agent and the node agent answer; the kernel worker lists problems, and
    loads the torch and the Triton that it judges with."""
    log = place / f"{file}.start.log"
    with builder.mounted(image) as root:
        figures: dict[str, Any] = {"bills": bills(root)}
        return figures | (_worker if file == WORKER else _agents)(root, image, log)


def _worker(root: Path, image: Image, log: Path) -> dict[str, Any]:
    began_s = time.monotonic()
    with running(root, image, (), log) as process:
        assert process.wait(STARTED_S) == 0, log.read_text()[-4000:]
    figures: dict[str, Any] = {
        "problems_listed": len(log.read_text().splitlines()),
        "start_s": time.monotonic() - began_s,
    }
    program = "import time, torch, triton; print(torch.__version__, triton.__version__); time.sleep(600)"
    with running(root, image, ("-u", "-c", program), log, program=("python",)) as process:
        while not (said := log.read_text()).endswith("\n"):
            assert process.poll() is None, said[-4000:]
            assert time.monotonic() - began_s < 2 * STARTED_S, said[-4000:]
            time.sleep(0.1)
        figures |= dict(zip(("torch", "triton"), said.split(), strict=True))
        return figures | {"user": owner(process), "writable": writable(process)}


def _agents(root: Path, image: Image, log: Path) -> dict[str, Any]:
    port = free_port()
    with running(root, image, ("run",), log, more=settings(port)) as process:
        figures: dict[str, Any] = {"start_s": answers(f"http://127.0.0.1:{port}/healthz", process, log)}
        figures |= {"user": owner(process), "writable": writable(process)}
    port = free_port()
    node = ("node", "--host=127.0.0.1", f"--port={port}")
    with running(root, image, node, log, more={"NODE_NAME": "n1"}) as process:
        figures["node_start_s"] = answers(f"http://127.0.0.1:{port}/healthz", process, log)
        figures |= {"node_user": owner(process), "node_writable": writable(process)}
    return figures


def published(builder: Builder, image: Image) -> dict[str, bool]:
    """Whether what a registry has is what was built, and is pulled only where who should have signed it did."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder, repository = Path(name), "nightshift/agent"
        ours, other = Signer(folder / "ours", "release@example.org"), Signer(folder / "other", "other@example.org")
        with registry(folder) as at:
            digest = builder.push(image, f"{at.place}/{repository}:0.1.0", at.trust)
            publisher = Publisher(folder, at)
            figures = {"digest_kept": publisher.digest(f"{repository}:0.1.0") == digest}
            figures["unsigned_refused"] = "no signature exists" in publisher.refusal(repository, digest, ours)
            publisher.sign(f"{repository}:0.1.0", ours)
            figures["signed_pulled"] = not publisher.refusal(repository, digest, ours)
            figures["others_signature_refused"] = "rejected" in publisher.refusal(repository, digest, other)
    return figures


def settings(port: int) -> dict[str, str]:
    return {
        "NIGHTSHIFT_CLUSTER": "images",
        "NIGHTSHIFT_CONSOLE__PORT": str(port),
        "NIGHTSHIFT_STORE__URL": "sqlite:////var/lib/nightshift/nightshift.db",
        "NIGHTSHIFT_SOURCES": json.dumps([{"type": "prometheus", "url": "http://127.0.0.1:9"}]),
    }


def owner(process: subprocess.Popen[bytes]) -> int:
    """User id of a running program."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])


def writable(process: subprocess.Popen[bytes]) -> list[str]:
    """Mount points of disks and memory that a running program could write to, seen from its root."""
    found = []
    root = os.readlink(f"/proc/{process.pid}/root")
    for line in Path(f"/proc/{process.pid}/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        inside = (
            place == root or place.startswith(f"{root}/") or place in ("/", "/tmp", "/var/lib/nightshift", "/work")
        )
        if inside and kind not in ("proc", "devtmpfs", "sysfs") and "ro" not in options.split(","):
            found.append(place.removeprefix(root) or "/")
    return sorted(set(found))


def bills(root: Path) -> dict[str, int]:
    """By file of the bill of materials: how many components it lists."""
    found = {}
    for path in sorted((root / "usr/share/sbom").glob("*.json")):
        told = json.loads(path.read_text())
        assert told["bomFormat"] == "CycloneDX", path
        found[path.name] = len(told["components"])
    return found


def sizes(builder: Builder, image: Image) -> dict[str, Any]:
    """Megabytes (10^6) by what they are: the whole root, and what of it is ours."""
    with builder.mounted(image) as root:
        ours = _bytes(root / "opt/nightshift")
        return {
            "mb": round(_bytes(root) / 1e6, 1),
            "ours_mb": round(ours / 1e6, 1),
            "byte_code_files": sum(1 for _ in root.rglob("*.pyc")),
            "distributions": len(list((root / "opt/nightshift").glob("lib/*/site-packages/*.dist-info"))),
        }


def _bytes(folder: Path) -> int:
    """Of regular files, each once, as a layer stores them."""
    seen: dict[tuple[int, int], int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            stat = os.lstat(os.path.join(where, name))
            seen[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(seen.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=VARIANTS, help="one image; keeps the others' figures")
    only = parser.parse_args().only
    wheels = Path(os.environ.get("PIP_FIND_LINKS") or "/nonexistent")
    file = RESULTS / "images.json"
    before = json.loads(file.read_text())["results"]["images"] if file.exists() else {}
    images: dict[str, Any] = {name: before[name] for name in VARIANTS if name in before}
    with package_mirror(PLACE / "packages", wheels if wheels.is_dir() else None) as mirror:
        builder = Builder(PLACE, mirror)
        for figure in VARIANTS if only is None else (only,):
            images[figure] = measured(builder, *VARIANTS[figure])
            print(json.dumps(images[figure], indent=1), flush=True)
            write("images", {"images": images, "limits_mb": LIMITS_MB})


def measured(builder: Builder, file: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Two builds: one from the layers that there are, one without any; and a start of the latter."""
    first = builder.build(file, arguments, cached=True)
    began_s = time.monotonic()
    second = builder.build(file, arguments, cached=False)
    took_s = time.monotonic() - began_s
    return {
        "commit": commit(),
        "digest": second.digest,
        "digests_equal": first.digest == second.digest,
        "build_s": round(took_s, 1),
        **sizes(builder, second),
        **start(builder, second, file, PLACE),
        **({"published": published(builder, second)} if file == AGENT else {}),
        "load_average": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
