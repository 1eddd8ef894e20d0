"""Keys that are typed while a command writes: they do not appear in its output, and are not lost."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.cli.terminals import terminal

ECHO = ("-m", "tests.cli.echo_chat")
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
WAITS = """
import sys, time
from chaski.cli.quiet_terminal import quiet_terminal
with quiet_terminal():
    print("quiet", flush=True)
    sys.stdin.readline() if "reads" in sys.argv else time.sleep(60)
    if "fails" in sys.argv:
        raise ZeroDivisionError
print("typed", repr(input()))
"""


def test_what_is_typed_during_an_answer_is_the_next_message() -> None:
    with terminal(*ECHO) as chat:
        chat.wait_for_prompt(1)
        chat.type("slow\r")
        chat.wait_for("<'slow'>")
        chat.type("next \x7f\rthird\r/bye\r")
        assert chat.wait_for_end() == 0
        # Nothing but the end of the line is between the answer and the next prompt.
        assert "<'slow'>\r\n>>> " in chat.text
        assert "<'next'>\r\n>>> " in chat.text
        assert chat.text.count("<'third'>") == 1


@pytest.mark.long
def test_a_paste_during_an_answer_is_one_message() -> None:
    with terminal(*ECHO) as chat:
        chat.wait_for_prompt(1)
        chat.type("slow\r")
        chat.wait_for("<'slow'>")
        assert b"\x1b[?2004l" not in chat.seen
        chat.type(f"{PASTE}one\rtwo{PASTED}\r\x04")
        assert chat.wait_for_end() == 0
        assert "<'one\\ntwo'>" in chat.text
        assert b"\x1b[?2004l" in chat.seen


@pytest.mark.long
def test_lines_typed_before_the_first_prompt_are_messages() -> None:
    with terminal(*ECHO) as chat:
        chat.type("one\rtwo\r/bye\r")
        assert chat.wait_for_end() == 0
        assert "<'one'>" in chat.text
        assert "<'two'>" in chat.text
        assert chat.echoes


def test_a_signal_restores_the_terminal() -> None:
    for number in (signal.SIGTERM, signal.SIGQUIT):
        with terminal("-c", WAITS) as waiting:
            waiting.wait_for("quiet")
            assert not waiting.echoes
            waiting.process.send_signal(number)
            assert waiting.wait_for_end() == -number
            assert waiting.echoes


@pytest.mark.parametrize("key", ["\x03", "\r"])
def test_an_error_or_ctrl_c_restores_the_terminal(key: str) -> None:
    with terminal("-c", WAITS, "reads", "fails") as waiting:
        waiting.wait_for("quiet")
        waiting.type(key)
        assert waiting.wait_for_end() != 0
        assert ("KeyboardInterrupt" if key == "\x03" else "ZeroDivisionError") in waiting.text
        assert waiting.echoes


def test_typed_lines_are_left_for_the_next_reader() -> None:
    with terminal("-c", WAITS, "reads") as waiting:
        waiting.wait_for("quiet")
        waiting.type("first\rsecond\r")
        assert waiting.wait_for_end() == 0
        assert waiting.text == "quiet\r\ntyped 'second'\r\n"


def test_ctrl_z_restores_the_terminal_until_fg() -> None:
    script = f"{sys.executable} -c '{WAITS}'; echo stopped; read line; echo got $line; fg"
    with terminal("-mc", script, command="bash") as shell:
        shell.wait_for("quiet")
        shell.type("\x1a")
        shell.wait_for("stopped")
        assert shell.echoes
        shell.type("hello\r")
        shell.wait_for("got hello")
        shell.wait_until(lambda: not shell.echoes)
        shell.type("\x03")
        assert shell.wait_for_end() != 0
        assert shell.echoes


def test_a_command_in_the_background_leaves_the_terminal_alone() -> None:
    program = 'from chaski.cli.quiet_terminal import quiet_terminal\nwith quiet_terminal(): print("ran")'
    with terminal("-mc", f"{sys.executable} -c '{program}' & wait; echo done", command="bash") as shell:
        shell.wait_for("done")
        assert "ran" in shell.text
        assert shell.echoes


@pytest.mark.long
def test_ctrl_z_at_the_prompt_restores_the_terminal_until_fg() -> None:
    script = f"{sys.executable} -m tests.cli.echo_chat; echo stopped; read line; echo got $line; fg"
    with terminal("-mc", script, command="bash") as shell:
        shell.wait_for_prompt(1)
        shell.type("begun\x1a")
        shell.wait_for("stopped")
        assert shell.echoes
        assert b"\x1b[?2004l" in shell.seen
        shell.type("hello\r")
        shell.wait_for("got hello")
        shell.wait_until(lambda: not shell.echoes and shell.text.count(">>> begun") == 1)
        shell.type(" and ended\r")
        shell.wait_for("<'begun and ended'>")
        shell.type("/bye\r")
        assert shell.wait_for_end() == 0
        assert shell.echoes
