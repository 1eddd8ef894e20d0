"""The texts of the chat's help, and the words of its commands, which Tab completes."""

from __future__ import annotations

from chaski.cli.line_editor import Words

__all__ = ["HELP", "HINT", "SET_HELP", "SHOW_HELP", "TOPICS", "WORDS"]

HINT = "Send a message (/? for help)"
HELP = """\
Available commands:
  /set NAME ...    change the session; /set alone says what there is
  /show NAME       tell about the model; /show alone says what there is
  /load MODEL      go on with another model, and a new conversation
  /save NAME       make a model of this one with its options, its system
                   message and the conversation
  /list            list the models of the store
  /clear           forget the conversation
  /bye             leave
  /? [TOPIC]       this help, or that of set, show or shortcuts

Use \"\"\" to begin and to end a message of several lines.
A path in a message, like ./cat.png, shows that image to a model that sees.
Ctrl-C stops an answer, Ctrl-D leaves."""
SET_HELP = """\
Available to /set:
  /set parameter NAME VALUE ...   an option: temperature, seed, num_predict,
                                  num_ctx, stop ...
  /set system TEXT                the system message
  /set history | nohistory        remember the conversation, or answer each
                                  message alone
  /set format json | noformat     answer in JSON, or in text
  /set think [LEVEL] | nothink    let the model think, or not: low, medium,
                                  high, max
  /set verbose | quiet            print counts and rates after each answer
  /set wordwrap | nowordwrap      break lines between words, or anywhere"""
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
  Ctrl-G            go on in an editor: OLLAMA_EDITOR, VISUAL or EDITOR
  Ctrl-L            clear the screen
  Up, Down          what was typed before
  Ctrl-R            search what was typed before
  Tab               complete a command
  Ctrl-C            stop an answer, or clear the line
  Ctrl-D            leave, where nothing is typed
A text that is pasted is one message, however many lines it has."""
TOPICS = {"set": SET_HELP, "show": SHOW_HELP, "shortcuts": SHORTCUTS}
_PARAMETERS = (
    *("temperature", "seed", "num_predict", "num_ctx", "num_thread", "num_keep", "stop", "top_k", "top_p"),
    *("min_p", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty"),
)
_SETTINGS: Words = {
    "parameter": dict.fromkeys(_PARAMETERS),
    "format": {"json": None},
    "think": dict.fromkeys(("low", "medium", "high", "max")),
    **dict.fromkeys(("system", "history", "nohistory", "noformat", "nothink")),
    **dict.fromkeys(("verbose", "quiet", "wordwrap", "nowordwrap")),
}
_SHOWN = ("info", "license", "modelfile", "parameters", "system", "template")
WORDS: Words = {
    "/set": _SETTINGS,
    "/show": dict.fromkeys(_SHOWN),
    "/help": dict.fromkeys(TOPICS),
    **dict.fromkeys(("/load", "/save", "/list", "/clear", "/bye", "/?")),
}
