"""Which job and rank a pod is, where no Kubernetes API says so: by the pod's name.

The rule is a pattern with the groups `job` and, if the name tells it, `rank`; the default reads `JOB-RANK`, which
StatefulSets, indexed Jobs (`job-0-x7k2p`) and PyTorchJobs (`job-worker-3`) follow. A pod that holds several GPUs
runs several ranks, so its number is then no rank and only the job is taken.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.subject import Subject, SubjectKind


class WorkloadRule(BaseModel):
    """How names tell jobs and ranks, where the Kubernetes API does not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pod_pattern: str = Field(
        r"(?P<job>.+?)(?:-(?:worker|master))?-(?P<rank>\d{1,6})(?:-[a-z0-9]{5})?",
        description="Pattern that a pod's whole name matches, with the groups job and (optional) rank",
    )
    namespace: str = Field(
        "default", min_length=1, description="Namespace of jobs from files with no namespace in their path"
    )

    @field_validator("pod_pattern")
    @classmethod
    def _has_a_job(cls, text: str) -> str:
        try:
            groups = re.compile(text).groupindex
        except re.error as error:
            raise ValueError(f"pod_pattern: {error}") from error
        if "job" not in groups:
            raise ValueError("pod_pattern: no group named job")
        return text

    def place(self, namespace: str, pod: str) -> tuple[Subject | None, Subject | None]:
        """(job, rank) of a pod; None where its name does not tell.

        >>> [str(subject) for subject in WorkloadRule().place("ml", "llm-worker-3")]
        ['job:ml/llm', 'rank:ml/llm#3']
        >>> WorkloadRule().place("ml", "notebook")
        (None, None)
        """
        match = re.fullmatch(self.pod_pattern, pod)
        if match is None:
            return None, None
        job = Subject(SubjectKind.JOB, f"{namespace}/{match['job']}")
        number = match.groupdict().get("rank")
        return job, None if number is None else rank_of(job, int(number))


def rank_of(job: Subject, rank: int) -> Subject:
    return Subject(SubjectKind.RANK, f"{job.name}#{rank}")


def pod_subject(namespace: str, pod: str) -> Subject:
    """Raises ValueError where a name is too long or holds control characters."""
    if not (namespace.isprintable() and pod.isprintable()):
        raise ValueError("a pod's name with control characters")
    return Subject(SubjectKind.POD, f"{namespace}/{pod}")


def container_subject(namespace: str, pod: str, container: str) -> Subject:
    """Raises ValueError where a name is too long or holds control characters."""
    if not container.isprintable():
        raise ValueError("a container's name with control characters")
    return Subject(SubjectKind.CONTAINER, f"{pod_subject(namespace, pod).name}/{container}")
