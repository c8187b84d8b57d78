"""What stands out in a profile: what the IPU Model found, and what was measured on this host."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch.ipu_model.findings import NOTE, Finding
from poptorch.report.files import Profile


def findings_in(profile: Profile) -> list[Finding]:
    """All of it, the most urgent first. Texts, JSON and pages show the same list."""
    document = profile.document
    names = Finding.__dataclass_fields__
    found = [
        Finding(**{name: value for name, value in it.items() if name in names})
        for it in document["estimate"].get("findings", [])
    ]
    known = [it for it in found if it.kind == "assumption"]
    return [*(it for it in found if it.kind != "assumption"), *_measured(profile), *known]


def _measured(profile: Profile) -> Iterator[Finding]:
    runs = profile.document["execution"]["runs"]
    if runs:
        mean = sum(run["seconds"] for run in runs) / len(runs)
        yield Finding(
            NOTE, "measured", f"A call took {mean * 1e3:,.1f} ms on this host",
            f"The IPU Model expects {profile.document['estimate']['seconds'] * 1e3:,.3f} ms on IPUs. Times of this "
            "host say nothing about IPUs.", tab="host",
        )  # fmt: skip


__all__ = ["findings_in"]
