"""Takes secrets and personal data out of text before it becomes evidence, and so before it can leave the process.

Known token forms go by their vendors' documented prefixes; anything that is assigned to a name that says "secret"
goes whatever it looks like; credentials in URLs and headers go by their place. What the evidence needs stays: GPU
UUIDs, checksums, addresses, step lines. Each find is replaced by `[redacted:KIND]`; lines keep their number.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, field_validator

_NAME = (
    r"[\w.-]*(?:(?<![a-z])pass|password|passwd|passphrase|pwd|secret(?:[_-]key)?|token|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential|account[_-]?key|encryption[_-]?key|signing[_-]?key|auth[_-]?key)s?"
)
# `password: null` or `token=$TOKEN` tells nothing, and people need it to see what was not set.
_HARMLESS = (
    r"(?!(?:null|none|true|false|nil|unset|empty|redacted|\*+|<[^>]*>|\$\{?\w+\}?|\d+(?:\.\d+)?)(?:[\s\"',;}&\\]|$))"
    r"(?!\[redacted:)"
)

_VALUE = (
    rf"\\{{1,6}}[\"']{_HARMLESS}[^\"'\\]{{1,512}}|\"{_HARMLESS}(?:[^\"\\]|\\.){{1,512}}\"|'{_HARMLESS}[^']{{1,512}}'"
    rf"|{_HARMLESS}[^\s\"',;}}&]{{4,512}}"
)
"""A value as it is written: in quotes that a JSON within JSON has escaped, in quotes, or bare."""

_HEADER = r"\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:token|api-?key|splunk)\s+)?"

RULES: tuple[tuple[str, str], ...] = (
    (
        "private_key",
        # without its end, too: the log may have been cut in the middle of the key
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[\s\S]{0,8192}?-----END [A-Z0-9 ]*-----|[\s\S]*)",
    ),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
    ("aws_key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    ("github_token", r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,})"),
    ("gitlab_token", r"\bgl(?:pat|ptt|dt|rt|cbt|soat)-[A-Za-z0-9_-]{18,}"),
    ("slack_token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-\d-[A-Za-z0-9-]{10,}"),
    ("slack_webhook", r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]+"),
    ("llm_key", r"\bsk-(?:ant-|proj-|svcacct-|or-)?[A-Za-z0-9_-]{20,}"),
    ("huggingface_token", r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    ("nvidia_key", r"\bnvapi-[A-Za-z0-9_-]{40,}"),
    ("google_key", r"\bAIza[A-Za-z0-9_-]{35}|\bya29\.[A-Za-z0-9_-]{20,}"),
    ("stripe_key", r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    (
        "prefixed_token",
        r"\b(?:gsk|xai|r8|pplx|dop_v1|glsa|tskey|dckr_pat|sntrys|shpat|lin_api)[_-][A-Za-z0-9_-]{24,}",
    ),
    ("npm_token", r"\bnpm_[A-Za-z0-9]{36}"),
    ("pypi_token", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("databricks_token", r"\bdapi[a-f0-9]{32}\b"),
    ("sendgrid_key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("vault_token", r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}"),
    ("age_key", r"\bAGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    # bounded repeats: an unbounded one before `@` is quadratic on a line made to be slow
    ("url_credentials", r"(?<=://)[^\s/:@\"']{0,256}:[^\s/\"']{1,512}(?=@)|(?<=://)[A-Za-z0-9_-]{20,512}(?=@)"),
    ("authorization", r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{8,}|(?<=\bbasic )[A-Za-z0-9+/]{12,}={0,2}"),
    ("authorization", rf"(?i)(?P<keep>{_HEADER})(?!(?:bearer|basic|negotiate)\b)[^\s\"',]{{6,}}"),
    ("basic_auth", r"(?P<keep>\bcurl\b[^\n]{0,200}?\s(?:-u|--user)[\s=]*[\"']?)[^\s:\"']{1,128}:[^\s\"']{1,256}"),
    ("basic_auth", r"(?i)(?P<keep>[\"']auth[\"']\s*:\s*[\"'])[A-Za-z0-9+/]{12,}={0,2}(?=[\"'])"),
    ("argument_secret", r"(?P<keep>\bsshpass\s+-p\s*)[^\s]{1,256}"),
    ("argument_secret", rf"(?P<keep>\bwandb\s+login\s+(?:--\S+\s+)*){_HARMLESS}[A-Za-z0-9_-]{{20,}}"),
    ("netrc", rf"(?i)(?P<keep>\blogin\s+\S{{1,256}}\s+password\s+){_HARMLESS}\S{{1,256}}"),
    ("cookie", r"(?i)(?P<keep>\b(?:set-)?cookie[\"']?\s*:\s*)\S[^\r\n]{5,}"),
    (
        "sas_signature",
        r"(?i)(?P<keep>[?&](?:sig|signature|x-amz-signature|x-goog-signature)=)[A-Za-z0-9%+/=_-]{16,}",
    ),
    (
        "assigned_secret",
        rf"(?i)(?P<keep>(?<![\w.-]){_NAME}\\{{0,6}}[\"']?\s*(?:=|:|:=|=>)\s*)(?:{_VALUE})",
    ),
    (
        "argument_secret",
        rf"(?i)(?P<keep>(?<![\w.-])--?{_NAME}\s+)(?!-){_HARMLESS}[^\s\"']{{4,512}}",
    ),
)
# Text that speaks to a reader rather than of a machine. What it stands in may prove a fact; it may not advise.
_ADDRESSES_A_READER = re.compile(
    r"(?i)\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instruction|rule|prompt|previous|prior|above|guard)"
    r"|\byou (?:are now|are an?\b|(?:must|should|will|have to|may|can) (?:now |only |always |never )?"
    r"(?:approve|ignore|say|answer|conclude|report|reply|reject|contest|obey|reboot|drain))\b"
    r"|\b(?:now obey|end of evidence|skip grounding)\b"
    r"|^\W*(?:system|assistant|user|developer|human)\s*:|<\|?/?(?:im_start|im_end|system|assistant|evidence|action)\b"
    r"|<function_calls|<invoke|\[/?INST\]|\btool_call|[\"']tool[\"']\s*:"
    r"|\b(?:approve|approved|reject|contest|resolve|close|conclude)\b.{0,40}\b(?:plan|incident|inc-\d+|by \w+ \()"
    r"|\bnightshift\s+[a-z]+|\bINC-\d+\b|\brunbook:|\bguard is disabled|\bno action (?:is )?needed"
    r"|\b(?:confidence|recovery_action)\s*=|\*\*RESOLVED\*\*|<!(?:channel|here)|@(?:here|everyone)\b"
)
_HIDES = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f\x1b]")
# An address or a command that a person could follow or paste.
_FOLLOWABLE = re.compile(
    r"(?i)\b[a-z][a-z0-9+.-]{1,20}://|\bwww\.|\b(?:javascript|data|mailto):"
    r"|\b(?:kubectl|nightshift|helm|docker|podman|crictl|systemctl|sudo|ssh|scp|curl|wget|pip3?|apt(?:-get)?|modprobe|rmmod"
    r"|ipmitool|scontrol)\s+[-\w]|\b(?:nvidia-smi|bash|sh|python3?|rm|dd|kill|mkfs\w*|chmod|chown|echo|eval)\s+-{1,2}\w"
    r"|[|;&]\s*(?:ba)?sh\b|`[^`]+`|\$\(|^\s*[$#]\s+\w"
)


def addresses_a_reader(text: str) -> bool:
    """Whether text from outside speaks to whoever reads it (an instruction, a forged verdict, hidden characters)
    instead of telling what happened. A mark, not a proof: nothing marked may contest a plan."""
    flat = unicodedata.normalize("NFKC", text[:MAX_TEXT])
    return bool(_HIDES.search(text[:MAX_TEXT]) or any(map(_ADDRESSES_A_READER.search, flat.split("\n"))))


def followable(text: str) -> bool:
    """Whether text holds an address or a command: such text from a model or a log is never shown beside Approve."""
    return bool(_FOLLOWABLE.search(unicodedata.normalize("NFKC", text[:MAX_TEXT])))


_EMAIL = r"(?<![\w.+-])[A-Za-z0-9][\w.+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24}\b"
_IPV4 = r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)"
_IPV6 = (
    r"(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])"
    r"|(?<![\w:])(?:[0-9a-f]{1,4}:){1,6}:(?:[0-9a-f]{1,4}:?){0,6}"
)
# Longer text is cut before it is searched, and that is said: some patterns are quadratic at their worst.
MAX_TEXT = 2**16


class Settings(BaseModel):
    """What is taken out besides secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    emails: bool = Field(default=True, description="Take out e-mail addresses")
    ip_addresses: bool = Field(default=False, description="Take out IP addresses")
    patterns: dict[str, str] = Field(
        default_factory=dict, description="Further regular expressions, by the kind under which they are reported"
    )

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: dict[str, str]) -> dict[str, str]:
        for kind, text in patterns.items():
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"patterns.{kind}: {text!r}: {error}") from error
        return patterns


@dataclass
class Redactor:
    """Call it with text. `found` counts by kind what was taken out."""

    settings: Settings = field(default_factory=Settings)
    found: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        rules = list(RULES)
        rules += [("email", _EMAIL)] if self.settings.emails else []
        rules += [("ip_address", _IPV4), ("ip_address", _IPV6)] if self.settings.ip_addresses else []
        rules += list(self.settings.patterns.items())
        self._rules = [(kind, re.compile(text)) for kind, text in rules]

    def __call__(self, text: str) -> str:
        """The text without what must not leave; the same text gives the same answer."""
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}… [cut]"
        for kind, pattern in self._rules:
            text = pattern.sub(lambda match, kind=kind: self._replace(match, kind), text)  # type: ignore[misc]
        return text

    def document(self, text: str) -> str:
        """A text of any length without what must not leave, in pieces that end with a line."""
        kind, keys = self._rules[0]  # the one thing that spans lines
        text = keys.sub(lambda match: self._replace(match, kind), text)
        pieces: list[str] = []
        while text:
            end = len(text) if len(text) <= MAX_TEXT else text.rfind("\n", 0, MAX_TEXT) + 1 or MAX_TEXT
            pieces.append(self(text[:end]))
            text = text[end:]
        return "".join(pieces)

    def _replace(self, match: re.Match[str], kind: str) -> str:
        self.found[kind] += 1
        kept = match.groupdict().get("keep") or ""
        # lines keep their numbers: a key over ten lines leaves ten
        lines = "\n" * match.group(0).count("\n")
        return f"{kept}[redacted:{kind}]{lines}"
