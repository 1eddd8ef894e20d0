from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import chaski
from chaski.chat.events import Done
from chaski.cli.answer_output import report
from chaski.cli.main import chaski_command
from chaski.runner.loading import engine_choice
from tests.runner.loading.test_engine_choice import write_misfit
from tests.tiny_llama import write_tiny_llama

ROOT = Path(__file__).parents[2]
GREEDY = ("--temperature", "0", "--num-predict", "12")


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(chaski_command, ["run", *arguments], input=stdin)


def expected(path: Path, prompt: str, system: str | None = None) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    with chaski.load(path) as model:
        messages.append({"role": "user", "content": prompt})
        return model.chat(messages, temperature=0, num_predict=12).text


def test_an_answer_goes_to_stdout_and_nothing_else(tiny_llama: Path) -> None:
    result = run(str(tiny_llama), "hello there", *GREEDY)
    assert result.exit_code == 0
    assert result.stdout == expected(tiny_llama, "hello there") + "\n"
    assert result.stderr == ""


def test_a_pasted_command_names_the_model() -> None:
    assert "--threads" in run("$ ollama run guide", "how do I use fewer cores?").stdout
    refused = run("https://huggingface.co/datasets/a/b", "hello")
    assert (refused.exit_code, "the link of a model" in refused.stderr) == (1, True)


def test_words_and_piped_text_make_one_prompt(tiny_llama: Path) -> None:
    answer = expected(tiny_llama, "in the other end") + "\n"
    assert run(str(tiny_llama), "in the", "other end", *GREEDY).stdout == answer
    assert run(str(tiny_llama), *GREEDY, stdin="in the other end\n").stdout == answer
    assert run(str(tiny_llama), "other end", *GREEDY, stdin="in the\n").stdout == answer


def test_no_prompt_at_all_is_an_error(tiny_llama: Path) -> None:
    result = run(str(tiny_llama), stdin=" \n")
    assert result.exit_code == 2
    assert "the standard input is empty" in result.stderr


def test_system_message(tiny_llama: Path) -> None:
    result = run(str(tiny_llama), "hello", "--system", "be brief", *GREEDY)
    assert result.stdout == expected(tiny_llama, "hello", "be brief") + "\n"


def test_llama_cpp_answers_where_ours_lacks_what_a_file_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_misfit(tmp_path / "variant.gguf", "blk.0.attn_q_gate.weight", (2, 64))
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None)
    result = run(str(path), "hello", *GREEDY)
    assert result.exit_code == 1
    assert "has no use for tensors blk.0.attn_q_gate.weight" in result.stderr
    assert "pip install 'chaski-llm[llama-cpp]'" in result.stderr
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: object())
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "runner" / "channels" / "llamacpp" / "fake"))
    result = run(str(path), "hello", *GREEDY)
    assert (result.exit_code, result.stdout) == (
        0,
        "<|begin_of_text|>[user]hello[assistant]"[::-1][:12] + "\n",
    )


def test_a_draft_model_changes_nothing_but_the_time(tiny_llama: Path, tmp_path: Path) -> None:
    answer = expected(tiny_llama, "hello there") + "\n"
    assert run(str(tiny_llama), "hello there", "--draft", str(tiny_llama), *GREEDY).stdout == answer
    refused = run(str(tiny_llama), "hello there", "--draft", "guide", *GREEDY)
    assert refused.exit_code == 1
    assert "guide.gguf cannot be the draft of tiny.gguf" in refused.stderr


def test_raw_prompts_go_around_the_template(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama) as model:
        answer = model.generate("hello", temperature=0, num_predict=12).text
    assert run(str(tiny_llama), "hello", "--raw", *GREEDY).stdout == answer + "\n"


def test_options_reach_the_sampler(tiny_llama: Path) -> None:
    wild = ("--temperature", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--num-predict", "12")
    answers = [run(str(tiny_llama), "hello", *wild, "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert answers[0] == answers[1] != answers[2]
    whole = run(str(tiny_llama), "hello", *GREEDY).stdout
    assert (
        run(str(tiny_llama), "hello", *GREEDY, "--stop", whole[5]).stdout
        == whole[: whole.index(whole[5])] + "\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--context", "3"), "Error: the prompt has 21 tokens, but the context holds 3"),
        (("--threads", "999"), "Error: threads = 999 must be at most"),
        (("--backend", "abacus"), "Error: backend 'abacus' is unknown"),
    ],
)
def test_bad_options_are_errors(tiny_llama: Path, options: tuple[str, ...], message: str) -> None:
    result = run(str(tiny_llama), "hello", *options)
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert result.stdout == ""


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "plain.gguf", chat_template=None)
    with chaski.load(path) as model:
        answer = model.generate("hello", temperature=0, num_predict=12).text
    command = [sys.executable, "-m", "chaski", "run", str(path), "hello", *GREEDY]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, check=True)
    assert done.stdout.decode() == answer + "\n"
    assert done.stderr == b"Note: plain.gguf has no chat template: it gets plain text, without roles\n"


def test_ctrl_c_ends_the_answer_and_what_there_is_of_it_stays(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "long.gguf", llama__context_length=200_000)
    options = ["--temperature", "0", "--context", "150000"]
    command = [sys.executable, "-m", "chaski", "run", str(path), "hello", *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        begin = process.stdout.read(200)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert len(begin) == 200
    assert rest.endswith(b"\n")
    assert errors == b""


def test_piped_bytes_that_are_not_text(tiny_llama: Path) -> None:
    result = CliRunner().invoke(chaski_command, ["run", str(tiny_llama), *GREEDY], input=b"a\xffb")
    assert result.stdout == expected(tiny_llama, "a\ufffdb") + "\n"


def test_verbose_reports_counts_and_rates_on_stderr(tiny_llama: Path) -> None:
    result = run(str(tiny_llama), "hello there", "--verbose", *GREEDY)
    assert result.stdout == expected(tiny_llama, "hello there") + "\n"
    shape = re.sub(r"\d+(\.\d+)?", "N", re.sub(r"\b([\d.]+)(µs|ms|s)$", "TIME", result.stderr, flags=re.M))
    assert shape.splitlines() == [
        "total duration:       TIME",
        "load duration:        TIME",
        "prompt eval count:    N token(s)",
        "prompt eval duration: TIME",
        "prompt eval rate:     N tokens/s",
        "eval count:           N token(s)",
        "eval duration:        TIME",
        "eval rate:            N tokens/s",
    ]


def test_the_report_leaves_out_what_is_zero() -> None:
    done = Done(
        reason="stop",
        prompt_tokens=30,
        cached_tokens=10,
        generated_tokens=5,
        dropped_tokens=0,
        load_seconds=0.0,
        prefill_seconds=0.5,
        decode_seconds=2.0,
    )
    assert report(done).splitlines() == [
        "total duration:       2.5s",
        "prompt eval count:    30 token(s)",
        "prompt cached count:  10 token(s)",
        "prompt eval duration: 500ms",
        "prompt eval rate:     40.00 tokens/s",
        "eval count:           5 token(s)",
        "eval duration:        2s",
        "eval rate:            2.00 tokens/s",
    ]


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("--num-predict=-5", "-5 must be an integer of at least -2."),
        ("--temperature=-1", "-1.0 must be a finite number of at least 0."),
        ("--temperature=nan", "nan must be a finite number of at least 0."),
        ("--top-p=2", "2.0 must be a number from 0 to 1."),
        ("--min-p=-1", "-1.0 must be a number from 0 to 1."),
        (f"--seed={2**64}", f"{2**64} must be an integer from 0 to 2**64 - 1, or -1 for a fresh one."),
        ("--threads=0", "0 is not in the range x>=1."),
        ("--context=0", "0 is not in the range x>=1."),
        ("--num-gpu=-2", "-2 is not in the range x>=-1."),
        ("--dimensions=0", "0 is not in the range x>=1."),
        ("--split=x", "--split = 'x' must be layers or rows"),
        ("--nodes=x", "--nodes = 'x' must be addresses such as"),
    ],
)
def test_numbers_outside_their_range_are_refused(option: str, wanted: str) -> None:
    result = run("guide", "hello", option)
    assert result.exit_code in (1, 2)
    assert wanted in result.stderr
    assert option.partition("=")[0] in result.stderr


def test_numbers_below_zero_mean_what_they_mean_in_ollama(tiny_llama: Path) -> None:
    for numbers in (["--seed=-1", "--num-gpu=-1", "--top-k=-1"], ["--num-predict=-2"]):
        result = run(str(tiny_llama), "hello", "--num-predict=4", "--temperature=0", *numbers)
        assert result.exit_code == 0, result.stderr


def test_a_format_can_be_the_file_of_a_schema(tiny_llama: Path, tmp_path: Path) -> None:
    schema, damaged = tmp_path / "schema.json", tmp_path / "damaged.json"
    schema.write_text('{"enum": [7]}')
    damaged.write_text("{")
    result = run(str(tiny_llama), "hello", "--format", str(schema), "--temperature", "0")
    assert result.stdout == "7\n"
    refused = run(str(tiny_llama), "hello", "--format", str(damaged)).stderr
    assert refused.startswith(f"Error: the format is no JSON: {damaged}: ")
    refused = run(str(tiny_llama), "hello", "--format", str(tmp_path / "none.json")).stderr
    assert "none.json'; it must be json, a JSON schema, or the file of one: No such file" in refused
