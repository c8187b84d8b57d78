"""Documentation: every Python block runs, and the generated page is what the code says."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

import pages
import poptorch
import preloaded

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")
"""The demo has tests of its own, which run it and read what it shows."""

GENERATORS = sorted(
    f"generate_{what}.py" for what in ("compatibility", "reference", "error_catalogue", "operations_table")
)
"""The scripts whose pages must be what they would write; each is a run with --check."""

LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run(page)


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_pages_are_up_to_date(name: str) -> None:
    script = ROOT / "scripts" / name
    done = preloaded.run([script, "--check"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_example_runs(program: Path, tmp_path: Path) -> None:
    done = preloaded.run([program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.name != "README.md"}


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get."""
    text = pages.FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    given = {found[1] for heading in headings if (found := re.search(r"\{#(.+)\}$", heading))}
    return given | {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(pages.FENCE.sub("", page.read_text())):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, and there is no such heading"


def in_the_reference(name: str) -> bool:
    """Whether an API page documents a public name: by itself, as a listed member, or with its whole module."""
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    if re.search(rf"(?:^::: [\w.]+\.|members: .*\b){name}\b", text, re.MULTILINE):
        return True
    home = getattr(getattr(poptorch, name), "__module__", None)
    return re.search(rf"^::: {home}$(?!\n    options:\n      members)", text, re.MULTILINE) is not None


def test_every_public_name_is_in_the_reference() -> None:
    plain_values = {"ATTR_PREFIX", "attributes_lists", "BlockId", "logger"}  # no docstring to show
    names = {name for name in dir(poptorch) if not name.startswith("_")}
    names = {name for name in names if not isinstance(getattr(poptorch, name), types.ModuleType)}
    assert {name for name in names - plain_values if not in_the_reference(name)} == set()


ITEMS = {
    "CTCLoss": "losses.md",
    "tensors are the only arguments under explicit tracing": "constraints.md: traceModel(True)",
    "any argument type": "constraints.md: of any type",
    "own launcher": "distributed.md: your own launcher",
    "VirtualIpuManager": "poprun.md",
    "Partition": "poprun.md",
    "both wrapping functions": "weights.md: inferenceModel",
    "loss inside forward": "losses.md: forward",
    "both training loops": "first-steps.md: backward()",
    "installation": "installation.md: pip install",
    "stack figure": "ipu.md: images/ipu.svg",
    "batching": "batching.md: images/batching.svg",
    "AdamW as argument": "optimizers.md: AdamW",
    "constant shapes": "constraints.md: Shapes and types stay the same",
    "only tensors vary": "constraints.md: Only tensors vary",
    "options by group": "options.md: options.Training",
    "loadFromFile": "options.md",
    "shallow copies": "weights.md: shallow cop",
    "eval before wrapping": "weights.md: eval()",
    "output modes and accuracy over all": "batching.md: accuracy",
    "executor methods": "api/models.md: PoplarExecutor",
    "weight synchronisation": "weights.md: copyWeightsToHost",
    "isRunningOnIpu with a custom-op fallback": "custom-operators.md: isRunningOnIpu()",
    "message, type, location of errors": "errors.md: location",
    "choosing a strategy": "parallel.md: Choose a strategy",
    "few IPUs are better": "parallel.md: As few IPUs as possible",
    "powers of two": "parallel.md: A power of two",
    "Block": "parallel.md: poptorch.Block(",
    "BeginBlock": "parallel.md: poptorch.BeginBlock(",
    "BlockFunction": "parallel.md: poptorch.BlockFunction(",
    "user_id": "parallel.md: `user_id`",
    "the four block rules": "parallel.md: Four rules hold for blocks",
    "Stage": "parallel.md: poptorch.Stage(",
    "AutoStage and 0-1-0": "parallel.md: 0, 1, 0",
    "Phase and ipus": "parallel.md: .ipus(",
    "f-strings as names": 'parallel.md: poptorch.Block(f"',
    "pipelining rules": "parallel.md: 2n − 1",
    "liveness setters": "parallel.md: setTensorsLiveness",
    "equal extra attributes": "optimizers.md: equal for all groups",
    "setOptimizer": "optimizers.md",
    "velocity scaling": "optimizers.md: velocity_scaling",
    "accumulation types": "optimizers.md: accum_type",
    "constant and variable attributes": "optimizers.md: markAsVariable",
    "native optimizers": "optimizers.md: Native optimizers",
    "MultiConv plan types": "operations.md: MultiConvPlanType",
    "nop": "operations.md: poptorch.nop",
    "logging levels": "debugging.md: `TRACE`",
    "autocast of a layer": "precision.md: autocast",
    "buffers and frozen attributes": "weights.md: attribute",
    "inference buffers": "weights.md: inference",
    "porting custom ops": "custom-operators.md: Port an operator from PopART headers",
    "exact versions": "installation.md: exact versions",
    "reconnecting exported models": "precompilation.md: connect them again",
    "default log level": "debugging.md: default log level",
    "environment variables": "environment.md: POPTORCH_",
}
"""What users of the original look for, the page that tells it, and words of it where they are not the item itself."""


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_of_the_original_guide_has_its_page(item: str) -> None:
    page, _, words = ITEMS[item].partition(": ")
    assert (words or item) in (ROOT / "docs" / page).read_text()
