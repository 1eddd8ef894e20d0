"""Reading what people type: with keys, pastes, a history and completion on a terminal, plainly elsewhere."""

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
    """Gives what reads a text behind a prompt; raises EOFError at the end, KeyboardInterrupt for Ctrl-C.

    is_kept: lines of earlier chats can be called back, and those of this one are kept at the end.
    words: what Tab completes. hint: what stands where nothing has been typed yet.
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

    So what is typed while an answer comes is a message when its turn is there.
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
    """Import the editor, which takes a moment: called in a thread while the model is loaded."""
    if sys.stdin.isatty() and _can_edit():
        import prompt_toolkit  # noqa: F401


def _can_edit() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _plain_text(prompt: str) -> str:
    """A line as the terminal itself, a file or a pipe gives it."""
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
    # It need not know where on the screen it is, and not every terminal answers that question.
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
    """The keys that differ from those of readline. A paste is inserted with its line ends in any case."""
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
    """Let the user's own editor change the text; what was not saved there is dropped."""
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
