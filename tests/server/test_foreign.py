"""The handling of every field of the official packages and of other engines."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import UnsupportedError
from chaski.server.fields.audit import unread_fields
from chaski.server.fields.unread import HARMLESS, REFUSED
from chaski.server.routes import BODIES
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running

HEADER = "x-chaski-ignored"
# Fields named in the header: features that models here lack, or that only the makers' servers have.
TOLD = {
    *("moderation", "verbosity", "web_search_options", "access_programs", "background_options", "image"),
    *("width", "height", "steps", "personality", "context_management", "compaction", "thread"),
}
OPENAI, ANTHROPIC = "openai/types/", "anthropic/types/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE), tmp_path_factory.mktemp("store"), Script().open) as found:
        yield found


def documented(module: str, *classes: str) -> set[str]:
    """Return the fields of classes of an installed package."""
    package, _, rest = module.partition("/")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    tree = ast.parse((Path(found.submodule_search_locations[0]) / rest).read_text())
    return {
        item.target.id
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name in classes
        for item in each.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


@pytest.mark.parametrize(
    ("path", "module", "classes"),
    [
        (
            "/v1/chat/completions",
            f"{OPENAI}chat/completion_create_params.py",
            ["CompletionCreateParamsBase"],
        ),
        ("/v1/completions", f"{OPENAI}completion_create_params.py", ["CompletionCreateParamsBase"]),
        ("/v1/embeddings", f"{OPENAI}embedding_create_params.py", ["EmbeddingCreateParams"]),
        ("/v1/responses", f"{OPENAI}responses/response_create_params.py", ["ResponseCreateParamsBase"]),
        (
            "/v1/responses/input_tokens",
            f"{OPENAI}responses/input_token_count_params.py",
            ["InputTokenCountParams"],
        ),
        ("/v1/messages", f"{ANTHROPIC}beta/message_create_params.py", ["MessageCreateParamsBase"]),
        ("/v1/messages", f"{ANTHROPIC}message_create_params.py", ["MessageCreateParamsBase"]),
        (
            "/v1/messages/count_tokens",
            f"{ANTHROPIC}message_count_tokens_params.py",
            ["MessageCountTokensParams"],
        ),
        (
            "/api/generate",
            "ollama/_types.py",
            ["BaseRequest", "BaseStreamableRequest", "BaseGenerateRequest", "GenerateRequest"],
        ),
        (
            "/api/chat",
            "ollama/_types.py",
            ["BaseRequest", "BaseStreamableRequest", "BaseGenerateRequest", "ChatRequest"],
        ),
        ("/api/embed", "ollama/_types.py", ["BaseRequest", "EmbedRequest"]),
        ("/api/embeddings", "ollama/_types.py", ["BaseRequest", "EmbeddingsRequest"]),
        ("/api/pull", "ollama/_types.py", ["BaseRequest", "BaseStreamableRequest", "PullRequest"]),
        ("/api/push", "ollama/_types.py", ["BaseRequest", "BaseStreamableRequest", "PushRequest"]),
        ("/api/create", "ollama/_types.py", ["BaseRequest", "BaseStreamableRequest", "CreateRequest"]),
        ("/api/copy", "ollama/_types.py", ["CopyRequest"]),
        ("/api/show", "ollama/_types.py", ["BaseRequest", "ShowRequest"]),
    ],
)
def test_every_documented_field_has_its_place(path: str, module: str, classes: list[str]) -> None:
    """Each field is read, harmless, refused, or reported; a new field of a newer package fails this test."""
    fields = {name.removesuffix("_") for name in documented(module, *classes)}
    assert fields
    assert fields <= BODIES["POST", path].fields.keys() | HARMLESS | REFUSED.keys() | TOLD


# Fields of engines and makers whose packages are not installed here, by their handling.
OTHERS: dict[str, dict[str, str]] = {
    "/v1/chat/completions": {
        "read": """
            add_generation_prompt bad_words chat_template_kwargs continue_final_message dry_allowed_length
            dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers early_stopping grammar
            guided_choice guided_grammar guided_json guided_regex ignore_eos include_stop_str_in_output
            json_schema length_penalty lora min_p min_tokens prompt_logprobs reasoning
            reasoning_budget_message reasoning_budget_tokens repetition_penalty stop_token_ids
            structured_outputs thinking_budget_tokens thinking_token_budget top_k top_n_sigma typical_p
            use_beam_search xtc_probability xtc_threshold""",
        "refused": """
            add_special_tokens allowed_token_ids best_of chat_template documents dynatemp_range echo
            grammar_lazy guided_whitespace_pattern include_reasoning logits_processors min_keep mirostat
            mm_processor_kwargs n_discard n_probs post_sampling_probs return_token_ids
            return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens structural_tag
            truncate_prompt_tokens""",
        "harmless": """
            cache_prompt dynatemp_exponent guided_decoding_backend id_slot mirostat_eta mirostat_tau
            priority request_id""",
        "named": """
            cache_salt kv_transfer_params media_io_kwargs n_indent provider reasoning_format response_fields
            return_progress samplers t_max_predict_ms timings_per_token vllm_xargs""",
    },
    "/infill": {
        "read": """
            dry_multiplier frequency_penalty grammar ignore_eos input_prefix input_suffix json_schema
            logit_bias lora min_p n_keep n_predict n_probs presence_penalty prompt repeat_last_n
            repeat_penalty response_fields return_tokens seed stop stream temperature top_k top_n_sigma top_p
            typical_p xtc_probability""",
        "refused": """
            bad_words dynatemp_range input_extra min_keep mirostat n_discard post_sampling_probs""",
        "harmless": "cache_prompt id_slot n_cache_reuse sse_ping_interval backend_sampling",
        "named": "n_indent return_progress samplers t_max_predict_ms timings_per_token",
    },
    "/completion": {
        "read": """
            dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers
            frequency_penalty grammar ignore_eos json_schema logit_bias lora max_tokens min_p n n_cmpl n_keep
            n_predict n_probs presence_penalty prompt repeat_last_n repeat_penalty response_fields
            return_tokens seed stop stream temperature top_k top_n_sigma top_p typical_p xtc_probability
            xtc_threshold""",
        "refused": """
            dynatemp_range image_data min_keep mirostat n_discard post_sampling_probs""",
        "harmless": """
            backend_sampling cache_prompt dynatemp_exponent id_slot mirostat_eta mirostat_tau n_cache_reuse
            sse_ping_interval""",
        "named": """
            adaptive_decay adaptive_target n_indent return_progress samplers t_max_predict_ms
            timings_per_token verbose""",
    },
    "/embedding": {
        "read": "content embd_normalize input model",
        "refused": "",
        "harmless": "user",
        "named": "encoding_format",
    },
    "/score": {
        "read": "documents model queries text_1 text_2",
        "refused": "mm_processor_kwargs truncate_prompt_tokens",
        "harmless": "priority",
        "named": "activation data_1 data_2 softmax",
    },
    "/v1/embeddings": {
        "read": "dimensions encoding_format input model truncate",
        "refused": "add_special_tokens truncate_prompt_tokens",
        "harmless": "priority request_id user",
        "named": "embedding_type input_type late_chunking normalized task truncation",
    },
    "/v2/rerank": {
        "read": "documents model query return_documents top_n truncate",
        "refused": "max_tokens_per_doc max_chunks_per_doc rank_fields",
        "harmless": "priority",
        "named": "truncation truncation_direction",
    },
    "/tokenize": {
        "read": """
            add_generation_prompt add_special add_special_tokens chat_template_kwargs content
            continue_final_message messages model parse_special prompt return_token_strs tools
            with_pieces""",
        "refused": "chat_template mm_processor_kwargs",
        "harmless": "",
        "named": "",
    },
    "/v1/batches": {
        "read": "completion_window endpoint input_file_id metadata",
        "refused": "",
        "harmless": "",
        "named": "output_expires_after",
    },
}


@pytest.mark.parametrize("path", OTHERS)
def test_every_field_of_other_engines_has_its_place(path: str) -> None:
    known = BODIES["POST", path].fields

    def fate(name: str) -> str:
        try:
            is_named = bool(list(unread_fields({name: "something"}, known)))
        except UnsupportedError:
            return "refused"
        return "named" if is_named else "read" if name in known else "harmless"

    expected = {name: place for place, names in OTHERS[path].items() for name in names.split()}
    assert {name: fate(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/files?limit=2&order=asc&purpose=batch", None),
        ("/v1/files?limit=2&before=x", "query before"),
        ("/v1/batches?limit=2&status=done", "query status"),
        ("/v1/models?beta=true", None),
        ("/v1/models?capabilities=chat", "query capabilities"),
        ("/api/tags?name=a", "query name"),
        ("/slots?model=guide&fail_on_no_slot=1&a%0Ab=1", "query a?b"),
    ],
)
def test_parameters_that_are_not_read_are_named(server: Running, path: str, named: str | None) -> None:
    assert server.get(path).headers.get(HEADER) == named


def test_every_option_of_the_ollama_package_has_its_place() -> None:
    options = dict.fromkeys(documented("ollama/_types.py", "Options"), 0)
    options |= {"tfs_z": 1, "penalize_newline": True}
    known = BODIES["POST", "/api/chat"].fields
    assert len(options) > 25
    assert list(unread_fields({"options": options}, known)) == []
    for name, value in (("mirostat", 2), ("tfs_z", 0.5), ("penalize_newline", False)):
        with pytest.raises(UnsupportedError, match=rf"^options\.{name} is not supported"):
            list(unread_fields({"options": {name: value}}, known))
    assert list(unread_fields({"options": {"heat": 1, "top_k": None}}, known)) == ["options.heat"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_change_the_answer_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{name} is not supported here"):
        list(unread_fields({name: "something"}, {}))
    for neutral in (*REFUSED[name], None):
        assert list(unread_fields({name: neutral}, {})) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {}),
        ("/api/embed", {"input": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": []}),
        ("/v1/rerank", {"query": "x", "documents": ["x"]}),
    ],
)
def test_an_answer_says_what_it_left_out(server: Running, path: str, body: dict[str, Any]) -> None:
    """This holds on every endpoint, whatever else happens to the request."""
    body = {"model": "guide", **body}
    assert HEADER not in server.post(path, body | {"user": "me", "metadata": None}).headers
    reply = server.post(path, body | {"a, b\n": 1, "colour": "red"})
    assert reply.headers[HEADER] == "field a? b?, field colour"
    refused = server.post(path, body | {"logits_processors": ["x"]})
    assert (refused.status, b"logits_processors is not supported here" in refused.body) == (400, True)


def test_streams_say_it_too(server: Running) -> None:
    asked: dict[str, Any] = {"model": "guide", "messages": [{"role": "user", "content": "x"}], "stream": True}
    for path in ("/api/chat", "/v1/chat/completions"):
        reply = server.post(path, asked | {"tone": "kind", "thinking": {"budget_tokens": 3}})
        assert (reply.status, reply.headers[HEADER]) == (200, "field tone, field thinking")
    asked["max_tokens"] = 8
    reply = server.post("/v1/messages", asked | {"thinking": {"type": "enabled", "display": "omitted"}})
    assert reply.headers[HEADER] == "field thinking.display"
