"""Reads user input: with an editor, history and completion on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.history import InputHistory
from chaski.cli.typed_words import Words, completions

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["MESSAGE_PROMPT", "line_editing", "preload"]

MESSAGE_PROMPT = ">>> "
_CONTINUATION = "... "


@contextmanager
def line_editing(is_kept: bool, words: Words, hint: str) -> Iterator[Callable[[str], str]]:
    """Provide a function that prints a prompt and reads a text.

    The function raises EOFError at the end of the input and KeyboardInterrupt on Ctrl-C.

    is_kept: whether lines of earlier chats are available, and the lines of this chat are saved at the end.
    words: the words that Tab completes.
    hint: the placeholder in an empty line.
    """
    if not sys.stdin.isatty():
        yield _plain_text
        return
    history = InputHistory(is_kept)
    can_edit = _can_edit()
    read = _editor(history.lines, words, hint) if can_edit else _plain_text

    def remembered(prompt: str) -> str:
        text = read(prompt)
        if prompt in (MESSAGE_PROMPT, _CONTINUATION):
            history.add(text)
        return text

    try:
        with _own_line_ends() if can_edit else nullcontext():
            yield remembered
    finally:
        history.save()


@contextmanager
def _own_line_ends() -> Iterator[None]:
    """Keep the terminal from turning Enter into a line feed, which is Ctrl-J.

    Thus a line typed while an answer is printed becomes a message of its own afterwards.
    """
    before = termios.tcgetattr(sys.stdin)
    changed = [*before]
    changed[0] &= ~termios.ICRNL
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def preload() -> None:
    """Import the editor. This takes a moment, so a thread calls it while the model is loaded."""
    if sys.stdin.isatty() and _can_edit():
        import prompt_toolkit  # noqa: F401


def _can_edit() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _plain_text(prompt: str) -> str:
    """Read a plain line from the terminal, a file or a pipe."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        click.echo()
        raise


def _editor(lines: list[str], words: Words, hint: str) -> Callable[[str], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.output.vt100 import Vt100_Output
    from prompt_toolkit.shortcuts import CompleteStyle

    output = Vt100_Output.from_pty(sys.stdout, os.environ.get("TERM"))
    # The editor does not need the cursor position, and not every terminal reports it.
    output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(lines),
        key_bindings=_keys(),
        completer=_completer(words),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        prompt_continuation=_CONTINUATION,
        enable_suspend=True,
        output=output,
    )

    def read(prompt: str) -> str:
        hidden = prompt != MESSAGE_PROMPT

        def placeholder() -> AnyFormattedText:
            return [("fg:ansibrightblack", "" if hidden or get_app().is_done else hint)]

        return session.prompt(prompt, placeholder=placeholder)

    return read


def _keys() -> KeyBindings:
    """Return the key bindings that differ from readline's. Pasted line ends are always kept."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-x", "c-e")
    @keys.add("c-g")
    def _(event: KeyPressEvent) -> None:
        from prompt_toolkit.application import run_in_terminal

        run_in_terminal(lambda: _edit(event.current_buffer))

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _edit(buffer: Buffer) -> None:
    """Open the text in the user's editor. Changes that are not saved there are dropped."""
    from prompt_toolkit.document import Document

    from chaski.env import Environment

    try:
        text = click.edit(buffer.text, editor=Environment.read().editor)
    except click.ClickException as error:
        click.echo(f"Error: {error}", err=True)
        return
    if text is not None:
        text = text.removesuffix("\n")
        buffer.document = Document(text, len(text))


def _completer(words: Words) -> Completer:
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class WordsInOrder(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            for word, length in completions(words, document.text_before_cursor):
                yield Completion(word, -length)

    return WordsInOrder()
