"""Reads user input: with an editor, history and completion on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.history import InputHistory
from chaski.cli.quiet_terminal import quiet_terminal, typed_ahead
from chaski.cli.typed_words import Words, completions
from chaski.standard_streams import valid_text

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["CONTINUATION", "MESSAGE_PROMPT", "Lines", "can_edit", "line_editing", "preload"]

MESSAGE_PROMPT = ">>> "
CONTINUATION = "... "


class Lines:
    """Prints a prompt and reads a text: `lines(prompt)`.

    Reading raises EOFError at the end of the input and KeyboardInterrupt on Ctrl-C.
    """

    def __init__(self, read: Callable[[str], str], remember: Callable[[str], None]) -> None:
        self._read, self._remember = read, remember

    def __call__(self, prompt: str) -> str:
        return valid_text(self._read(prompt))

    def remember(self, message: str) -> None:
        """Add a message, as it was typed, to those that the arrow keys bring back."""
        self._remember(message)


@contextmanager
def line_editing(is_kept: bool, words: Words, hint: str) -> Iterator[Lines]:
    """Provide the lines that the user types.

    is_kept: whether lines of earlier chats are available, and the lines of this chat are saved at the end.
    words: the words that Tab completes.
    hint: the placeholder in an empty line.
    """
    if not sys.stdin.isatty():
        yield Lines(_plain_text, lambda message: None)
        return
    history = InputHistory(is_kept)
    try:
        if not can_edit():
            yield Lines(_plain_text, history.add)
            return
        with quiet_terminal(keeps_keys=True):
            yield _editor(history, words, hint)
    finally:
        history.save()


def preload() -> None:
    """Import the editor. This takes a moment, so a thread calls it while the model is loaded."""
    if can_edit():
        import prompt_toolkit  # noqa: F401


def can_edit() -> bool:
    """Return whether a chat reads its lines with the editor."""
    return (
        sys.stdin.isatty()
        and sys.stdout.isatty()
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    )


def _plain_text(prompt: str) -> str:
    """Read a plain line from the terminal, a file or a pipe."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        click.echo()
        raise


def _editor(kept: InputHistory, words: Words, hint: str) -> Lines:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.output.vt100 import Vt100_Output
    from prompt_toolkit.shortcuts import CompleteStyle

    class Output(Vt100_Output):
        """Lets the terminal mark pastes between prompts too. `quiet_terminal` ends that."""

        def disable_bracketed_paste(self) -> None:
            pass

    class Messages(InMemoryHistory):
        """Whole messages, which `remember` adds, instead of the lines of each prompt."""

        def append_string(self, string: str) -> None:
            pass

        def remember(self, message: str) -> None:
            kept.add(message)
            if message and message != next(iter(self.get_strings()[-1:]), ""):
                super().append_string(message)

    output, history = Output.from_pty(sys.stdout, os.environ.get("TERM")), Messages(kept.lines)
    # The editor does not need the cursor position, and not every terminal reports it.
    output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        history=history,
        key_bindings=_keys(),
        completer=_completer(words),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        prompt_continuation=CONTINUATION,
        enable_suspend=True,
        output=output,
    )

    def read(prompt: str) -> str:
        hidden = prompt != MESSAGE_PROMPT

        def placeholder() -> AnyFormattedText:
            return [("fg:ansibrightblack", "" if hidden or get_app().is_done else hint)]

        return session.prompt(prompt, placeholder=placeholder)

    _take_early_keys(session.input)
    return Lines(read, history.remember)


def _take_early_keys(source: Input) -> None:
    """Hand the keys that were typed before the chat to the first prompts: a message for each line.

    Until the terminal became quiet, it had turned Enter into a line feed.
    """
    from prompt_toolkit.input.typeahead import store_typeahead
    from prompt_toolkit.input.vt100_parser import Vt100Parser
    from prompt_toolkit.key_binding import KeyPress

    keys: list[KeyPress] = []
    parser = Vt100Parser(keys.append)
    parser.feed(typed_ahead().decode(sys.stdin.encoding, "replace").replace("\n", "\r"))
    parser.flush()
    store_typeahead(source, keys)


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
