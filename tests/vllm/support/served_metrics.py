"""Asks this process for ``/metrics`` as an API server of vLLM answers."""

from prometheus_client.parser import text_string_to_metric_families


def scrape():
    """The text of a scrape."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient
    from vllm.entrypoints.serve.instrumentator.metrics import attach_router

    attach_router(app := FastAPI())
    return TestClient(app).get("/metrics").text


def ours(text):
    """Of a scrape's text our series: values by name and labels, without the model's name."""
    return {
        (sample.name.removeprefix("vllm:oproj_"), *_labels(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:oproj_")
    }


def _labels(labels):
    return tuple(value for name, value in sorted(labels.items()) if name not in ("model_name", "le"))
