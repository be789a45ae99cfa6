"""The lines keep every flag that is there, survive the shells and the hosts' own parsing, and show no passwords."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_vram.plan.launch_lines import changed_arguments, changed_conf, lines_for

WORDS = st.lists(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12)
    .map(lambda text: text.strip() or "x"),
    max_size=5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "add", "remove", "result"),
    [
        (["--api"], ["--medvram"], [], ("--api", "--medvram")),
        (["--api", "--medvram"], ["--medvram"], [], ("--api", "--medvram")),
        (["--no-half", "--precision", "full", "--api"], [], ["--no-half", "--precision"], ("--api",)),
        (["--precision=full", "--api"], [], ["--precision"], ("--api",)),
        (["--precision full", "--api"], [], ["--precision"], ("--api",)),
        (["--no-half", "models"], [], ["--no-half"], ("models",)),
        (["--reserve-vram", "2", "--api"], ["--novram"], ["--reserve-vram"], ("--api", "--novram")),
        (["--ckpt-dir", "/a b"], [], ["--lowvram"], ("--ckpt-dir", "/a b")),
    ],
)
def test_a_change_takes_flags_with_their_values_and_adds_at_the_end(arguments, add, remove, result):
    assert changed_arguments(arguments, add, remove) == result


@pytest.mark.parametrize(
    ("before", "option", "after"),
    [
        ("", "max_split_size_mb:512", "max_split_size_mb:512"),
        ("max_split_size_mb:128", "max_split_size_mb:512", "max_split_size_mb:512"),
        (
            "garbage_collection_threshold:0.8,max_split_size_mb:128", "expandable_segments:True",
            "garbage_collection_threshold:0.8,max_split_size_mb:128,expandable_segments:True",
        ),
        (
            "roundup_power2_divisions:[256:1,>:2]", "max_split_size_mb:64",
            "roundup_power2_divisions:[256:1,>:2],max_split_size_mb:64",
        ),
    ],
)  # fmt: skip
def test_an_option_of_the_allocator_takes_the_place_of_its_own(before, option, after):
    assert changed_conf(before, option) == after


def test_the_lines_as_they_are_written():
    lines = lines_for(["--api", "--ckpt-dir", "D:\\my models", "--theme", "dark"], "max_split_size_mb:512")
    assert lines.bat == (
        'set COMMANDLINE_ARGS=--api --ckpt-dir "D:\\\\my models" --theme dark',
        "set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512",
    )
    assert lines.sh == (
        "export COMMANDLINE_ARGS=\"--api --ckpt-dir 'D:\\\\my models' --theme dark\"",
        'export PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512"',
    )


def test_expandable_segments_are_never_offered_on_windows():
    lines = lines_for(["--api"], "expandable_segments:True", flags=False)
    assert lines.bat == ()
    assert lines.sh == ('export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"',)
    assert lines_for(["--api", "--medvram"], "expandable_segments:True").bat == ()


@pytest.mark.parametrize(
    "arguments", [["--gradio-auth", "me:secret"], ["--api-auth=me:secret"], ["--ngrok", "secret", "--api"]]
)
def test_passwords_and_keys_are_not_shown(arguments):
    lines = lines_for(arguments)
    assert "secret" not in str(lines)
    assert "***" in lines.bat[0]
    assert lines.hides == (arguments[0].split("=")[0],)


def set_by_cmd(line):
    """Return name and value that Windows' ``cmd`` takes from a ``set`` in a batch file, by its published rules.

    First ``%%`` becomes ``%``. Then a quotation mark begins or ends a quotation, in which all is itself; outside, a
    caret makes the next character itself, and these are commands: ``&``, ``|``, ``<`` and ``>``.
    """
    assert "%" not in line.replace("%%", ""), "a variable"
    read, quoted, characters = "", False, iter(line.replace("%%", "%"))
    for character in characters:
        if character == "^" and not quoted:
            read += next(characters)
            continue
        assert quoted or character not in "&|<>", f"{character} ends the command"
        quoted ^= character == '"'
        read += character
    return read.removeprefix("set ").split("=", 1)


@given(WORDS)
def test_cmd_and_the_hosts_read_from_the_bat_what_was_there(arguments):
    name, value = set_by_cmd(lines_for(arguments).bat[0])
    assert (name, shlex.split(value)) == ("COMMANDLINE_ARGS", arguments)


@pytest.mark.parametrize(
    "argument",
    [
        'a"b&c',
        'say "hi" & del x',
        "50%",
        "a^b",
        "x|y",
        "C:\\dir\\",
        "(a)",
        "it's",
        "<in>",
        "!x!",
        '"',
        "a b\\",
        "é ü",
        "",
    ],
)
def test_no_word_becomes_a_command_on_windows(argument):
    _, value = set_by_cmd(lines_for(["--api", "--x", argument, "--medvram"]).bat[0])
    assert shlex.split(value) == ["--api", "--x", argument, "--medvram"]


@pytest.mark.parametrize("conf", ["roundup_power2_divisions:[256:1,>:4]", "max_split_size_mb:512,backend:native"])
def test_an_allocators_setting_is_no_redirection_on_windows(conf):
    assert set_by_cmd(lines_for([], conf, flags=False).bat[0]) == ["PYTORCH_CUDA_ALLOC_CONF", conf]


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@given(WORDS)
@settings(max_examples=20, deadline=None)
def test_the_shell_and_the_hosts_read_from_the_sh_what_was_there(arguments):
    script = lines_for(arguments).sh[0] + '\nprintf %s "$COMMANDLINE_ARGS"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={"PATH": os.environ["PATH"]})
    assert shlex.split(done.stdout.decode()) == arguments


def test_a_percent_sign_is_no_variable_on_windows():
    assert lines_for(["--config", "50%"]).bat == ('set COMMANDLINE_ARGS=--config "50%%"',)
