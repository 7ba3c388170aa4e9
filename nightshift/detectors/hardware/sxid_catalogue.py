"""What NVIDIA's SXid numbers (errors of an NVSwitch) mean, and what each calls for.

Facts of NVIDIA's Fabric Manager User Guide (DU-09883-001, v1.3), appendix D: D.4 lists the non-fatal ones, D.5
those that are fatal to the link, D.6 those that are always fatal to the fabric; D.9 the reset of all GPUs and
NVSwitches, for which a node's restart stands here. A number that is in none of them is asked of a person.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.detectors.hardware.xid_catalogue import Recovery, Tier


@dataclass(frozen=True, slots=True)
class SwitchError:
    """One SXid. `tier`: FATAL stops the traffic of at least one link until it is reset."""

    code: int
    meaning: str
    tier: Tier
    action: Recovery


_CORRECTED = (
    11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071,
    24001, 24002, 24003,
)  # fmt: skip
_HARMLESS = {
    **dict.fromkeys(_CORRECTED, "single bit ECC error, corrected"),
    10001: "host access error",
    10002: "host access timed out",
    10005: "thermal event ended",
    20001: "NVLink packet sent again",
    20009: "short-term error rate of a link",
    22013: "link request of the link controller",
}
_WARNING = {
    10004: "thermal event: cooling may be insufficient",
    20012: "broken or inconsistent connection of a link",
}
_FATAL = {
    10003: "unhandled interrupt of the switch",
    11001: "ingress invalid command",
    11004: "ingress invalid ACL: wrong fabric partition",
    11009: "ingress invalid VCSet",
    11013: "ingress header double bit ECC error",
    11018: "ingress RID double bit ECC error",
    11019: "ingress RLAN double bit ECC error",
    11020: "ingress control parity error",
    12001: "egress crossbar overflow",
    12002: "egress packet route error",
    12020: "egress sequence ID error",
    12022: "egress input double bit ECC error",
    12024: "egress output double bit ECC error",
    12025: "egress credit overflow",
    12026: "egress destination request ID error",
    12027: "egress destination response ID error",
    12028: "egress non-posted PRIV error",
    12030: "egress control parity error",
    12031: "egress credit parity error",
    12032: "egress flit type mismatch",
    14017: "TS ATO timeout",
    15001: "route buffer over- or underflow",
    15006: "route transdone over- or underflow",
    15009: "route GLT double bit ECC error",
    15010: "route parity error",
    15012: "route incoming double bit ECC error",
    15013: "route credit parity error",
    19047: "NCISOC header double bit ECC error",
    19048: "NCISOC data double bit ECC error",
    19054: "header RAM double bit ECC error",
    19056: "data RAM 0 double bit ECC error",
    19058: "data RAM 1 double bit ECC error",
    19060: "request RAM header double bit ECC error",
    19061: "request RAM data double bit ECC error",
    19063: "response RAM header double bit ECC error",
    19064: "response RAM data double bit ECC error",
    19066: "COM RAM header double bit ECC error",
    19067: "COM RAM data double bit ECC error",
    19069: "response RAM 1 header double bit ECC error",
    19070: "response RAM 1 data double bit ECC error",
    19084: "heartbeat timeout of the switch",
    20034: "link went down (LTSSM fault up)",
    22003: "link controller halted",
    22011: "link controller external error",
    22012: "link controller reports a broken link",
    23001: "ingress buffer overflow",
    23002: "ingress buffer underflow",
    23003: "egress credit overflow",
    23004: "egress credit underflow",
    23005: "ingress packet burst error",
    23006: "ingress packet sticky error",
    23007: "possible bubbles at ingress",
    23008: "ingress packet with invalid destination",
    23009: "ingress packet parity error",
    23010: "ingress buffer overflow",
    23011: "ingress buffer underflow",
    23012: "egress credit overflow",
    23013: "egress credit underflow",
    23014: "ingress packet burst error",
    23015: "ingress packet sticky error",
    23016: "possible bubbles at ingress",
    23017: "ingress credit parity error",
    24004: "source tracker double bit ECC error",
    24005: "source tracker double bit ECC error",
    24006: "source tracker double bit ECC error",
    24007: "source tracker timeout",
}
SWITCH_ERRORS = {
    code: SwitchError(code, meaning, tier, action)
    for table, tier, action in (
        (_HARMLESS, Tier.WARNING, Recovery.NONE),
        (_WARNING, Tier.WARNING, Recovery.CONTACT_SUPPORT),
        (_FATAL, Tier.FATAL, Recovery.REBOOT_NODE),
    )
    for code, meaning in table.items()
}
LEAST_SXID = 10_000
"""Xids have three digits at most, SXids five: a number alone tells which it is."""


def title_of(code: int, xid_meaning: str | None) -> str:
    """How an Xid (with its meaning, None where it is not known) or SXid is called in a title.

    >>> title_of(12028, None), title_of(79, "GPU has fallen off the bus")
    ('SXid 12028 (egress non-posted PRIV error)', 'Xid 79 (GPU has fallen off the bus)')
    """
    if code < LEAST_SXID:
        return f"Xid {code} ({xid_meaning or 'not in the catalogue'})"
    entry = SWITCH_ERRORS.get(code)
    return f"SXid {code} ({entry.meaning if entry else 'not in the catalogue'})"
