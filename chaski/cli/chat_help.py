"""The help texts of the chat, and the words that Tab completes in its commands."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from chaski.cli.completion import known_models
from chaski.cli.typed_words import Words, paths
from chaski.options import OPTIONS

__all__ = ["HELP", "HINT", "PARAMETERS", "SETTINGS", "SET_HELP", "SHOWN", "SHOW_HELP", "TOPICS", "WORDS"]

HINT = "Send a message (/? for help)"
HELP = """\
Available commands:
  /set NAME ...    change the session; /set alone lists the names
  /show NAME       describe the model; /show alone lists the topics
  /load MODEL      start a new conversation with another model
  /save NAME       save a model with these options, this system message and
                   the conversation, and keep the computed state
  /list            list the models of the store
  /clear           forget the conversation
  /tools           list the tools that the model may call; load FILE adds
                   the tools of a JSON file in OpenAI's format, clear
                   removes all
  /cache           show the cached part of the conversation, and the prefix
                   cache
  /stats           show tokens, rates and times of the last answers and of
                   all answers
  /bye             leave
  /? [TOPIC]       show this help, or help on set, parameters, show or
                   shortcuts

Use \"\"\" to begin and to end a message of several lines.
A path in a message, such as ./cat.png, sends that image to a vision model.
Ctrl-C stops an answer, Ctrl-D leaves."""
SET_HELP = """\
Available to /set:
  /set parameter NAME VALUE ...   an option: temperature, seed, num_predict,
                                  num_ctx, stop ...; /? parameters lists all
  /set system TEXT                the system message
  /set history | nohistory        remember the conversation, or answer each
                                  message on its own
  /set format json | FILE.json    answer in JSON, or by the schema in a file
  /set noformat                   answer in text
  /set think [LEVEL] | nothink    turn thinking on or off; LEVEL is low,
                                  medium, high or max
  /set verbose | quiet            print counts and rates after each answer
  /set wordwrap | nowordwrap      break lines between words, or anywhere
  /set markdown | nomarkdown      format answers, or show their source text"""
SHOW_HELP = """\
Available to /show:
  /show info          the file, the context and the vocabulary
  /show license       the license
  /show modelfile     the Modelfile of the model
  /show parameters    the options set in this chat
  /show system        the system message
  /show template      the chat template"""
SHORTCUTS = """\
Available keys:
  Ctrl-A, Ctrl-E    to the beginning or the end of the line
  Alt-B, Alt-F      a word back or forward
  Ctrl-K, Ctrl-U    delete to the end or the beginning of the line
  Ctrl-W            delete the word before the cursor
  Ctrl-J            begin a new line in the message
  Ctrl-X Ctrl-E     edit the message in OLLAMA_EDITOR, VISUAL or EDITOR; also
                    Ctrl-G
  Ctrl-L            clear the screen
  Up, Down          earlier and later messages of the history
  Ctrl-R            search the history
  Tab               complete a command, the name of a model, or a path that
                    begins with /, ./, ../ or ~/
  Ctrl-C            stop an answer, or clear the line
  Ctrl-D            leave, if the line is empty
A pasted text is one message, even if it has several lines."""
PARAMETERS = {
    topic: tuple(name for name, option in OPTIONS.items() if option.topic == topic)
    for topic in dict.fromkeys(option.topic for option in OPTIONS.values() if option.topic)
}
"""The options that `/set parameter` accepts, by topic of the help."""
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
        "stop, bad_words, choice, stop_token_ids and dry_sequence_breakers take one or",
        "more values. adapter takes names, each optionally followed by =SCALE.",
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
SETTINGS: Mapping[str, str] = {
    **{name: f"/set parameter {name}" for name in OPTIONS},
    **{name: f"/set {name}" for name in _SETTINGS},
}
"""How to type each setting, and each option."""
SHOWN = ("info", "license", "modelfile", "parameters", "system", "template")
WORDS: Words = {
    "/set": _SETTINGS,
    "/show": dict.fromkeys(SHOWN),
    "/help": dict.fromkeys(TOPICS),
    "/load": known_models,
    "/tools": {"load": paths, "clear": None},
    **dict.fromkeys(("/save", "/list", "/clear", "/cache", "/stats", "/bye", "/?")),
}
