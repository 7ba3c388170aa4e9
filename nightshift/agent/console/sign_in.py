"""The console's own secrets: tokens that sign people in, and the key that binds forms to sessions.

The operator token is 256 random bits in a file that only the daemon's user can read; it is made at the first start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from nightshift.agent.approvals.policy import Role
from nightshift.agent.console.sessions import TokenAccount
from nightshift.collectors.base import Permanent

_SHORTEST_TOKEN = 32


def accounts(
    operator: str, state_dir: Path, secrets_dir: Path | None, tokens: Mapping[str, Path]
) -> dict[str, TokenAccount]:
    """Every token with its account: the operator, an admin, and those of `tokens`, whose roles `people` gives."""
    found = {operator_token(state_dir, secrets_dir): TokenAccount(operator, (str(Role.ADMIN),))}
    for name, path in tokens.items():
        token = given_secret(path)
        if len(token) < _SHORTEST_TOKEN:
            raise Permanent(f"console.tokens.{name}: {path} is shorter than {_SHORTEST_TOKEN} characters")
        # One token for two names would make two approvers of one person.
        if token in found or name == operator:
            raise Permanent(f"console.tokens.{name}: the name and the token must be unique")
        found[token] = TokenAccount(name)
    return found


def secret_file(path: Path, make_text: str) -> str:
    """The text of a secret file; written with `make_text`, readable by its owner alone, where it is absent.

    Raises Permanent where others can read it or it is empty.
    """
    try:
        # O_EXCL with the mode: of two daemons at their first start one writes the token, and it is never readable
        # by others, not even until a chmod.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise Permanent(f"{path} can be read by others; chmod 600 {path}") from None
        text = path.read_text().strip()
        if not text:
            raise Permanent(f"{path} is empty; remove it and a new one is made") from None
        return text
    except OSError as error:
        raise Permanent(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(make_text + "\n")
    return make_text


def given_secret(path: Path) -> str:
    """The text of a secret that somebody else provides, such as a mounted Secret, whose group may read it.

    Raises Permanent where it is absent, empty or readable by everybody.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except OSError as error:
        raise Permanent(f"{path}: {error.strerror}") from error
    # Kubernetes mounts a Secret for the pod's group (fsGroup), so the group may read it.
    if mode & 0o007:
        raise Permanent(f"{path} can be read by everybody; mount it with mode 0440")
    if not text:
        raise Permanent(f"{path} is empty; put the secret into it")
    return text


def operator_token(state_dir: Path, secrets_dir: Path | None = None) -> str:
    """The token that signs the operator in: `operator.token`, given, or made in the state folder."""
    if secrets_dir is not None:
        return given_secret(secrets_dir / "operator.token")
    return secret_file(state_dir / "operator.token", secrets.token_urlsafe(32))


def console_key(state_dir: Path, secrets_dir: Path | None = None) -> bytes:
    """The key that signs sessions: `console.key`, given, or made in the state folder."""
    path = (secrets_dir or state_dir) / "console.key"
    try:
        return bytes.fromhex(given_secret(path) if secrets_dir else secret_file(path, secrets.token_hex(32)))
    except ValueError as error:
        raise Permanent(f"{path} is not hexadecimal; 64 digits are needed") from error
