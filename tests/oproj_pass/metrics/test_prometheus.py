"""The series of runners in Prometheus' text form, read when they are scraped."""

import subprocess
import sys
from math import isnan

import pytest

from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.metrics import export_metrics

prometheus_client = pytest.importorskip("prometheus_client")


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def value(registry):
    """Reads one value off a scrape's text."""

    def read(series):
        lines = prometheus_client.generate_latest(registry).decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} ")), None)

    return read


def test_a_scrape_shows_the_steps_that_ran_by_then(serving, batch, peer, registry, value):
    runner = serving(group=peer)
    export_metrics(runner, registry=registry)
    seen = []
    for _ in range(2):
        seen.append(value('oproj_steps_total{kind="replayed",runner="model"}'))
        runner.step({"x": batch(3)})
    runner.idle_step({})
    assert seen == [0, 1]
    assert value('oproj_steps_total{kind="replayed",runner="model"}') == 3
    assert value('oproj_idle_steps_total{runner="model"}') == 1
    assert value('oproj_agreement_seconds_count{runner="model"}') == 3
    assert value('oproj_agreement_seconds_bucket{le="60.0",runner="model"}') == 3


def test_a_refusal_is_there_with_its_reason(serving, batch, peer, registry, value):
    runner = serving(group=peer)
    export_metrics(runner, registry=registry)
    peer.num_tokens = 17
    with pytest.raises(EagerStepError):
        runner.step({"x": batch(3)})
    assert value('oproj_refusals_total{reason="oversize",runner="model"}') == 1


def test_runners_of_one_registry_are_told_apart_by_their_names(serving, batch, registry, value):
    runners = [serving(name=name) for name in ("model", "draft")]
    export_metrics(*runners, registry=registry)
    runners[1].step({"x": batch(3)})
    found = [value(f'oproj_steps_total{{kind="replayed",runner="{runner.name}"}}') for runner in runners]
    assert found == [0, 1]


def test_runners_of_one_name_are_refused(serving, registry):
    with pytest.raises(ConfigError, match="a `name` of its own"):
        export_metrics(serving(), serving(), registry=registry)


def test_bytes_that_are_not_known_are_no_number(serving, batch, peer, registry, value):
    runner = serving(group=peer)
    export_metrics(runner, registry=registry)
    assert value('oproj_sent_bytes_total{runner="model"}') == 0
    runner.counts.add_step("replayed", None, idle=False)
    assert isnan(value('oproj_sent_bytes_total{runner="model"}'))


def test_a_collector_can_be_taken_back(serving, registry, value):
    registry.unregister(export_metrics(serving(), registry=registry))
    assert value('oproj_idle_steps_total{runner="model"}') is None


def test_without_prometheus_client_the_extra_is_named():
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from oproj_pass.metrics import export_metrics\n"
        "export_metrics()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'oproj-pass[metrics]'" in ended.stderr
