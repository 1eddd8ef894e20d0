"""The help texts of the chat, and the words of its commands, which Tab completes."""

from __future__ import annotations

import textwrap

from chaski.cli.completion import known_models
from chaski.cli.typed_words import Words, paths
from chaski.options import OPTIONS

__all__ = ["HELP", "HINT", "PARAMETERS", "SET_HELP", "SHOW_HELP", "TOPICS", "WORDS"]

HINT = "Send a message (/? for help)"
HELP = """\
Available commands:
  /set NAME ...    change the session; /set alone lists the names
  /show NAME       tell about the model; /show alone says what there is
  /load MODEL      go on with another model, and a new conversation
  /save NAME       make a model of this one with its options, its system
                   message and the conversation, and keep its state
  /list            list the models of the store
  /clear           forget the conversation
  /tools           list the tools that the model may call; load FILE adds
                   those of a JSON file in OpenAI's format, clear drops all
  /cache           what the model holds of the conversation, and its prefix
                   cache
  /stats           tokens, rates and times of the last answers and of all
  /bye             leave
  /? [TOPIC]       this help, or that of set, parameters, show or shortcuts

Use \"\"\" to begin and to end a message of several lines.
A path in a message, like ./cat.png, shows that image to a model that sees.
Ctrl-C stops an answer, Ctrl-D leaves."""
SET_HELP = """\
Available to /set:
  /set parameter NAME VALUE ...   an option: temperature, seed, num_predict,
                                  num_ctx, stop ...; /? parameters lists all
  /set system TEXT                the system message
  /set history | nohistory        remember the conversation, or answer each
                                  message alone
  /set format json | noformat     answer in JSON, or in text
  /set think [LEVEL] | nothink    let the model think, or not: low, medium,
                                  high, max
  /set verbose | quiet            print counts and rates after each answer
  /set wordwrap | nowordwrap      break lines between words, or anywhere
  /set markdown | nomarkdown      lay out answers, or show them as written"""
SHOW_HELP = """\
Available to /show:
  /show info          the file, the context and the vocabulary
  /show license       the license
  /show modelfile     the recipe that makes the model
  /show parameters    options that were set here
  /show system        the system message
  /show template      the chat template"""
SHORTCUTS = """\
Available keys:
  Ctrl-A, Ctrl-E    to the beginning or the end of the line
  Alt-B, Alt-F      a word back or forward
  Ctrl-K, Ctrl-U    delete to the end or the beginning of the line
  Ctrl-W            delete the word before the cursor
  Ctrl-J            begin a new line in the message
  Ctrl-X Ctrl-E     go on in an editor, OLLAMA_EDITOR, VISUAL or EDITOR; Ctrl-G
                    is the same
  Ctrl-L            clear the screen
  Up, Down          what was typed before
  Ctrl-R            search what was typed before
  Tab               complete a command, the name of a model, or a path that
                    begins with /, ./, ../ or ~/
  Ctrl-C            stop an answer, or clear the line
  Ctrl-D            leave, where nothing is typed
A text that is pasted is one message, however many lines it has."""
PARAMETERS = {
    topic: tuple(name for name, option in OPTIONS.items() if option.topic == topic)
    for topic in dict.fromkeys(option.topic for option in OPTIONS.values() if option.topic)
}
"""The options that the chat sets, by the lines of the help that name them."""
_MARGIN = 17
PARAMETERS_HELP = "\n".join(
    [
        "Options of /set parameter:",
        *(
            textwrap.fill(
                " ".join(names), 79, initial_indent=f"  {about:<15}", subsequent_indent=" " * _MARGIN
            )
            for about, names in PARAMETERS.items()
        ),
        "Several values are a list for stop, bad_words, choice, stop_token_ids and",
        "dry_sequence_breakers. adapter takes names, each with =SCALE or without.",
    ]
)
TOPICS = {"set": SET_HELP, "parameters": PARAMETERS_HELP, "show": SHOW_HELP, "shortcuts": SHORTCUTS}
_SETTINGS: Words = {
    "parameter": dict.fromkeys(name for names in PARAMETERS.values() for name in names),
    "format": {"json": None},
    "think": dict.fromkeys(("low", "medium", "high", "max")),
    **dict.fromkeys(("system", "history", "nohistory", "noformat", "nothink")),
    **dict.fromkeys(("verbose", "quiet", "wordwrap", "nowordwrap", "markdown", "nomarkdown")),
}
_SHOWN = ("info", "license", "modelfile", "parameters", "system", "template")
WORDS: Words = {
    "/set": _SETTINGS,
    "/show": dict.fromkeys(_SHOWN),
    "/help": dict.fromkeys(TOPICS),
    "/load": known_models,
    "/tools": {"load": paths, "clear": None},
    **dict.fromkeys(("/save", "/list", "/clear", "/cache", "/stats", "/bye", "/?")),
}
