"""What `explain` and `advise` ask of a config.json: the report on its model, traced now or before."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter

from oproj_pass.cli.hf_model import build_model, config_file, decode_step, model_errors, require_transformers
from oproj_pass.cli.output import progress
from oproj_pass.cli.trace_cache import TraceCache, key_of

if TYPE_CHECKING:
    from oproj_pass.explanation import ExplainReport

__all__ = ["NoCache", "Traced", "trace"]

NoCache = Annotated[bool, typer.Option("--no-cache", help="Trace the model again, and keep nothing of it.")]


@dataclass(frozen=True)
class Traced:
    """``report``: what explaining found; ``facts``: the model's whole configuration, as JSON types."""

    report: "ExplainReport"
    facts: Mapping[str, Any]


def trace(path: Path, dtype: str | None, config: Mapping[str, Any], *, no_cache: bool) -> Traced:
    """The report on the model of a config.json, or of the folder that holds one, with the options ``config``.

    ``dtype``: of the weights. Raises ``ConfigError`` as ``build_model`` does.
    """
    require_transformers()
    cache = TraceCache(None) if no_cache else TraceCache.of_user()
    key = key_of(config_file(path), {"dtype": dtype, "config": config})
    body = cache.get(key)
    if body is None:
        body = _dump(*_trace(path, dtype, config))
        cache.put(key, body)
    return _load(body)


def _trace(path: Path, dtype: str | None, config: Mapping[str, Any]) -> "tuple[ExplainReport, Any]":
    with progress(f"building {path}") as status:
        model: Any = build_model(path, dtype)
        status.update(f"capturing {type(model).__name__}")
        from oproj_pass.explanation import explain  # noqa: PLC0415 - loads Dynamo

        with model_errors(path):
            return explain(model, config=dict(config), **decode_step()), model.config


def _dump(report: "ExplainReport", config: Any) -> bytes:
    from oproj_pass.explanation.report import ExplainReport  # noqa: PLC0415

    found = TypeAdapter(ExplainReport).dump_python(report, mode="json")
    return json.dumps({"report": found, "facts": config.to_dict()}, default=str).encode()


def _load(body: bytes) -> Traced:
    from oproj_pass.explanation.report import ExplainReport  # noqa: PLC0415

    found = json.loads(body)
    return Traced(TypeAdapter(ExplainReport).validate_python(found["report"]), found["facts"])
