"""What is installed: all packages under ``src``, each with its marker for type checkers."""

from __future__ import annotations

import fnmatch
import pkgutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_package_is_installed_with_its_marker() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = sorted(path.parent.name for path in (ROOT / "src").glob("*/__init__.py"))
    assert packages == ["popart", "popdist", "poptorch", "poptorch_files", "poptorch_geometric"]
    for package in packages:
        assert any(fnmatch.fnmatch(package, pattern) for pattern in settings["packages"]["find"]["include"])
        assert "py.typed" in settings["package-data"][package]
        assert (ROOT / "src" / package / "py.typed").exists()


def test_every_command_exists() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert {"poprun", "vipu", "vipu-cli", "vipu-admin", "gc-info", "gc-monitor"} <= set(scripts)
    assert all(callable(pkgutil.resolve_name(target)) for target in scripts.values())


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_one_version_everywhere() -> None:
    from poptorch import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for page in ("docs/installation.md", "docs/compatibility.md", "CONTRIBUTING.md"):
        assert f"`{__version__}`" in (ROOT / page).read_text(encoding="utf-8"), page
