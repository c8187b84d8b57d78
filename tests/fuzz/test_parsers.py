"""Whatever a file or a variable says: it is understood, or there is an error of ours that names it.

``make test`` feeds what was found in the past (``corpus``) and some hundred inputs, ``make exhaustive`` many thousands.
``HYPOTHESIS_PROFILE=explore`` looks for others each time. A finding goes into the corpus: a file in the folder of its
parser, with a name that says what it is.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from parsers import PARSERS, Parser, seeds_of

CORPUS = Path(__file__).with_name("corpus")
SECONDS = 20.0
"""The longest that an input may take on a busy machine; most take a millisecond."""

MEMORY = 3 << 30
"""How much more memory than before a process may ask for."""

SETTINGS = {"suppress_health_check": list(hypothesis.HealthCheck), "database": None}

PIECES = [
    b"[" * 2000, b"{", b"}", b"]", b'"', b"'", b"(", b")", b",", b";", b":", b"=", b"\n", b"\0", b"\xff", b"\x1b[2J",
    b"-1", b"0", b"1e999", b"NaN", b"null", b"true", b"9" * 30, b"9" * 5000, b"18446744073709551615", b"4294967296",
    b"-9223372036854775809", b"../", b"/etc/passwd", b"\xc2\xb2", b"\xed\xb2\x80", b"__class__", b"x" * 3000, b"[]",
    b"{}", b"..", b"*", b"**", b"-" * 500, b"[0-99999999]", b"trusted=True", b"PK\x01\x02", b"\x93NUMPY",
]  # fmt: skip


def mutated(data: bytes, seed: int, count: int) -> bytes:
    """The same with some changes: bits, bytes, pieces of it, and what parsers do not like."""
    chosen, changed = random.Random(seed), bytearray(data)
    for _ in range(count):
        at = chosen.randrange(len(changed) + 1)
        length = min(len(changed) - at, 1 << chosen.randrange(8))
        match chosen.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chosen.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chosen.randrange(256)
            case 2:
                changed[at:at] = chosen.choice(PIECES)
            case 3:
                changed[at : at + length] = chosen.choice(PIECES)
            case 4:
                del changed[at : at + length]
            case 5:
                changed[at:at] = changed[at : at + length]
            case 6:
                place = chosen.randrange(len(changed) + 1)
                changed[place:place] = changed[at : at + length]
    return bytes(changed)


@pytest.fixture(scope="module", params=PARSERS, ids=lambda parser: parser.name.replace(" ", "-"))
def parser(request) -> Parser:
    return request.param


@pytest.fixture(scope="module")
def folder(parser: Parser, tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def seeds(parser: Parser, folder: Path) -> list[bytes]:
    return seeds_of(parser, folder)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A parser that takes memory before it checks a size fails."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def check_text(parser: Parser, error: BaseException) -> None:
    said = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert parser.names in said, f"which file or variable? {type(error).__name__}: {said}"
    assert len(said) < 20_000, "the text is as long as the input"


def feed(parser: Parser, data: bytes, folder: Path) -> None:
    began = time.monotonic()
    try:
        parser.feed(data, folder)
    except parser.raises as error:
        check_text(parser, error)
    assert time.monotonic() - began < SECONDS


def test_sound_input_is_understood(parser: Parser, seeds: list[bytes], folder: Path) -> None:
    for seed in seeds:
        feed(parser, seed, folder)


def corpus_of(parser: Parser) -> list[Path]:
    return sorted((CORPUS / parser.name.replace(" ", "-")).glob("*"))


@pytest.mark.usefixtures("little_memory")
def test_what_was_found_in_the_past(parser: Parser, folder: Path) -> None:
    for path in corpus_of(parser):
        feed(parser, path.read_bytes(), folder)


def test_every_part_of_the_corpus_belongs_to_a_parser() -> None:
    known = {parser.name.replace(" ", "-") for parser in PARSERS}
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= known


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("tries", [40, pytest.param(3000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])])
def test_changed_input(parser: Parser, seeds: list[bytes], folder: Path, tries: int) -> None:
    @hypothesis.settings(max_examples=min(tries, parser.tries), **SETTINGS)
    @hypothesis.given(st.sampled_from(range(len(seeds))), st.integers(0, 2**32), st.integers(1, 12))
    def run(place: int, seed: int, count: int) -> None:
        feed(parser, mutated(seeds[place], seed, count), folder)

    run()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("tries", [20, pytest.param(1000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])])
def test_any_input(parser: Parser, folder: Path, tries: int) -> None:
    @hypothesis.settings(max_examples=min(tries, parser.tries), **SETTINGS)
    @hypothesis.given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=20)), max_size=8).map(b"".join))
    def run(data: bytes) -> None:
        feed(parser, data, folder)

    run()
