"""Requests made up from the server's own description never meet a bug.

    DRAFTWOOD_CASES=900 pytest packages/draftwood-serve/tests/test_schema.py --timeout 0

makes 28,800 requests in place of 1,920.
"""

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from local_server import NAME, RunningServer
from thinning import thinned

EXAMPLES = int(os.environ.get("DRAFTWOOD_CASES", "60"))
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    *("/infill", "/api/chat", "/api/generate", "/v1/embeddings", "/api/embed"),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", PATHS)
def test_no_request_that_fits_or_nearly_fits_fails_here(server: RunningServer, path: str) -> None:
    raw = server.client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(raw)
    schema.config.base_url = server.address
    operation = schema[path]["POST"]
    strategy = st.one_of(
        *(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)
    )
    statuses = set()

    @given(case=strategy)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        if isinstance(case.body, dict):
            if path.startswith("/api/"):
                case.body.setdefault("options", {"num_predict": 3})
            elif not case.body.get("max_tokens") and path != "/infill":
                case.body["max_tokens"] = 3
        response = case.call(timeout=30)
        statuses.add(response.status_code)
        case.validate_response(response, checks=[not_a_server_error])

    ask()
    assert 400 in statuses


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(alphabet=st.characters(), max_size=5),
    st.just("\ud800"),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("logit_bias", "seed", "n", "stop", "stream_options", "speculative", "logprobs", "echo"),
    *("model", "prompt", "messages", "input", "tools", "response_format", "text", "best_of"),
    *("prediction", "suffix", "input_suffix", "input_extra", "response_fields", "format", "system"),
    *("dimensions", "encoding_format", "pooling", "truncate", "options"),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", thinned(PATHS, 3))
def test_no_value_of_any_field_fails_here(server: RunningServer, path: str) -> None:
    import json

    start: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
        "/v1/completions": {"prompt": "a", "max_tokens": 2},
        "/v1/responses": {"input": "a", "max_output_tokens": 2},
        "/infill": {"input_prefix": "a", "n_predict": 2},
        "/api/chat": {
            "model": NAME,
            "messages": [{"role": "user", "content": "a"}],
            "options": {"num_predict": 2},
        },
        "/api/generate": {"model": NAME, "prompt": "a", "options": {"num_predict": 2}},
        "/v1/embeddings": {"input": "a"},
        "/api/embed": {"model": NAME, "input": "a"},
    }

    @given(more=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
    @settings(
        max_examples=3 * EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def ask(more: dict[str, Any]) -> None:
        headers = {"content-type": "application/json"}
        response = server.client.post(
            path, content=json.dumps({**start[path], **more}), headers=headers
        )
        assert response.status_code < 500, response.text

    ask()
