"""``vipu``: each command explains itself, and there is one version."""

from __future__ import annotations

import pytest

import poptorch
from popdist.vipu.command import run
from popdist.vipu.registry import RegistryError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("create partition", ["--size SIZE", "--num-gcds", "the name of the partition"]),
        ("get partition", ["--gcd GCD", "--ipuof-configs"]),
        ("remove partition", ["--force"]),
        ("delete partition", ["--force"]),
        ("reset partition", ["--relocatable"]),
        ("list partitions", ["List all partitions."]),
        ("list ipu-attrs", ["List the IPUs"]),
    ],
)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_a_command_shows_its_flags(words, expected, flag):
    text = run([*words.split(), flag])
    assert text.startswith(f"usage: vipu {words}")
    assert all(phrase in text for phrase in expected)


def test_without_a_command_all_commands_are_listed():
    assert run([]) == run(["--help"])
    assert "create partition NAME" in run(["-h"])


def test_the_version_is_that_of_the_package():
    assert run(["--version"]) == f"vipu {poptorch.__version__}\n"
    assert f"version: {poptorch.__version__}\n" in run(["--server-version"])


@pytest.mark.parametrize("verb", ["create", "get", "list", "remove", "reset"])
def test_a_verb_lists_its_objects(verb: str) -> None:
    text = run([verb, "--help"])
    assert text.startswith(f"usage: vipu {verb} OBJECT")
    assert f"vipu {verb} partition: " in text


def test_a_word_that_is_no_verb_has_no_help() -> None:
    with pytest.raises(RegistryError, match="there is no command 'destroy'"):
        run(["destroy", "--help"])
