"""The Prometheus observer: names, labels, bounds, and the answer to a scrape."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import semel
from semel.errors import ConfigurationError
from semel.metrics import ALL
from semel.observer import CombinedObserver, NullObserver, Operation
from semel.prometheus import PrometheusObserver, _observe, metrics_app

SEEDS = {
    "outbox_backlog": ("gauge", ()),
    "outbox_failed": ("gauge", ()),
    "outbox_dead": ("gauge", ()),
    "outbox_publish_latency_seconds": ("histogram", ("topic",)),
    "consumer_inbox_processed_total": ("counter", ("consumer_name", "event_type")),
    "consumer_inbox_duplicates_total": ("counter", ("consumer_name", "event_type")),
    "consumer_inbox_processing_duration_seconds": ("histogram", ("consumer_name", "event_type")),
}


@pytest.fixture
def observer() -> PrometheusObserver:
    return PrometheusObserver(CollectorRegistry())


def value(observer: PrometheusObserver, name: str, **labels: str) -> float | None:
    return observer.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(("name", "expected"), SEEDS.items())
def test_the_promised_names(
    observer: PrometheusObserver, name: str, expected: tuple[str, Sequence[str]]
) -> None:
    """Name, type and labels are exactly as the specification has them."""
    kind, names = expected
    labels = dict.fromkeys(names, "x")
    match kind:
        case "gauge":
            observer.gauge(name, 7)
        case "counter":
            observer.count(name, **labels)
        case _:
            observer.record(name, 0.1, **labels)
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(observer.registry).decode())
    }
    family = families[name.removesuffix("_total")]
    sample = f"{name}_count" if kind == "histogram" else name
    assert kind == family.type
    assert [labels] == [s.labels for s in family.samples if s.name == sample]


def test_values(observer: PrometheusObserver) -> None:
    """Counters add up, gauges are set, histograms take several values at once."""
    for _ in range(2):
        observer.count("outbox_published_total", 3, topic="orders", transport="kafka")
        observer.gauge("outbox_backlog", 5)
        observer.record("outbox_publish_latency_seconds", 0.2, 7.0, topic="orders")
    assert 6 == value(observer, "outbox_published_total", topic="orders", transport="kafka")
    assert 5 == value(observer, "outbox_backlog")
    latency = "outbox_publish_latency_seconds"
    assert 4 == value(observer, f"{latency}_count", topic="orders")
    assert 2 == value(observer, f"{latency}_bucket", topic="orders", le="5.0")
    assert 1 == value(observer, "semel_build_info", version=semel.__version__)


@given(st.lists(st.floats(0, 1000) | st.sampled_from([0.005, 5.0, 300.0]), min_size=1, max_size=50))
def test_many_values_count_as_each_alone(values: list[float]) -> None:
    """What is added at once is what would be there one by one, bounds included."""
    name = "outbox_publish_latency_seconds"
    once, singly = (PrometheusObserver(CollectorRegistry()) for _ in range(2))
    once.record(name, *values, topic="orders")
    for each in values:
        singly.record(name, each, topic="orders")

    def shown(observer: PrometheusObserver) -> dict[tuple[str, str], float]:
        [family] = [f for f in observer.registry.collect() if f.name == name]
        return {
            (s.name, s.labels.get("le", "")): s.value
            for s in family.samples
            if not s.name.endswith("_created")
        }

    assert pytest.approx(shown(singly)) == shown(once)


def test_a_histogram_of_another_make_is_observed_singly() -> None:
    """A client that looks different inside costs time, no value."""
    seen: list[float] = []

    class Other:
        def observe(self, value: float) -> None:
            seen.append(value)

    _observe(Other(), [1.0] * 20)  # type: ignore[arg-type]
    assert [1.0] * 20 == seen


def test_what_it_does_not_know_is_ignored(observer: PrometheusObserver) -> None:
    """An observer never raises: other names, other kinds, missing and superfluous labels."""
    before = generate_latest(observer.registry)
    observer.count("no_such_total")
    observer.gauge("no_such", 1)
    observer.record("no_such_seconds", 1)
    observer.count("outbox_backlog")
    observer.gauge("outbox_published_total", 1)
    observer.inject({})
    assert before == generate_latest(observer.registry)
    observer.count("outbox_died_total", tenant="acme", event_id="e-1")
    assert 1 == value(observer, "outbox_died_total", topic="")
    assert "acme" not in generate_latest(observer.registry).decode()


def test_a_gauge_that_nobody_set_is_not_exported(observer: PrometheusObserver) -> None:
    """A process that samples nothing does not claim that the backlog is empty."""
    assert "outbox_backlog" not in generate_latest(observer.registry).decode()


def test_all_metrics_fit_into_one_registry(observer: PrometheusObserver) -> None:
    """No name is in the way of another, such as a gauge's of a counter's without `_total`."""
    for metric in ALL:
        labels = dict.fromkeys(metric.labels, "x")
        observer.gauge(metric.name, 1, **labels)
        observer.count(metric.name, **labels)
        observer.record(metric.name, 1, **labels)
    text = generate_latest(observer.registry).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {metric.name.removesuffix("_total") for metric in ALL} <= families


def test_a_name_that_is_taken_stops_nothing(
    observer: PrometheusObserver, caplog: pytest.LogCaptureFixture
) -> None:
    Gauge("outbox_backlog", "Of somebody else.", registry=observer.registry).set(3)
    observer.gauge("outbox_backlog", 1)
    observer.gauge("outbox_backlog", 2)
    assert 3 == value(observer, "outbox_backlog")
    assert ["another metric is called outbox_backlog: ours is not shown"] == caplog.messages


def test_labels_are_bounded() -> None:
    """The first values have series of their own, all later ones share one."""
    observer = PrometheusObserver(CollectorRegistry(), max_label_values=2)
    for topic in ("a", "b", "c", "d", "a"):
        observer.count("outbox_died_total", topic=topic)
    found = {t: value(observer, "outbox_died_total", topic=t) for t in ("a", "b", "c", "other")}
    assert {"a": 2, "b": 1, "c": None, "other": 2} == found
    with pytest.raises(ConfigurationError, match="at least 1"):
        PrometheusObserver(CollectorRegistry(), max_label_values=0)


def test_two_observers_need_two_registries(observer: PrometheusObserver) -> None:
    with pytest.raises(ConfigurationError, match="CollectorRegistry of its own"):
        PrometheusObserver(observer.registry)


def test_operations_are_timed(observer: PrometheusObserver) -> None:
    """By outcome; an exception passes and is an error; what has no metric is left alone."""
    both = CombinedObserver(observer, NullObserver())
    operation = Operation(name="publish")
    with both.observe(operation):
        operation.outcome = "transient"
    with pytest.raises(KeyError), both.observe(Operation(name="publish")):
        raise KeyError
    with both.observe(Operation(name="command", labels={"command": "Ship"})):
        pass
    with both.observe(Operation(name="process")):
        pass
    publish = "outbox_publish_duration_seconds_count"
    assert 1 == value(observer, publish, outcome="transient")
    assert 1 == value(observer, publish, outcome="error")
    assert 1 == value(observer, "command_duration_seconds_count", command="Ship", outcome="ok")


async def test_a_scrape_is_answered(observer: PrometheusObserver) -> None:
    observer.gauge("outbox_backlog", 17)
    answer = await scrape(metrics_app(observer))
    assert 200 == answer.status_code
    assert "\noutbox_backlog 17.0\n" in answer.text
    assert answer.text == (await scrape(metrics_app(observer.registry))).text


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Basic s3cret", 401),
        ("Bearer s3cret", 200),
    ],
)
async def test_a_token_protects(
    observer: PrometheusObserver, authorization: str | None, status: int
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await scrape(metrics_app(observer, token="s3cret"), headers)
    assert status == answer.status_code
    assert (status == 200) == ("semel_build_info" in answer.text)
    with pytest.raises(ConfigurationError, match="must not be empty"):
        metrics_app(observer, token="")


async def scrape(app: object, headers: dict[str, str] | None = None) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=transport, base_url="http://semel") as client:
        return await client.get("/metrics", headers=headers)


def test_several_processes_answer_as_one(tmp_path: Path) -> None:
    """Counters of all processes add up, also of those that ended; gauges are of the living."""
    worker = (
        "from semel.prometheus import PrometheusObserver\n"
        "from prometheus_client.multiprocess import mark_process_dead\n"
        "import os\n"
        "observer = PrometheusObserver()\n"
        "observer.count('outbox_died_total', 2, topic='orders')\n"
        "observer.gauge('outbox_leases_held', 32)\n"
    )
    end = "mark_process_dead(os.getpid())\n"
    reader = (
        "import asyncio, httpx2\n"
        "from semel.prometheus import metrics_app\n"
        "async def main():\n"
        "    transport = httpx2.ASGITransport(app=metrics_app())\n"
        "    async with httpx2.AsyncClient(transport=transport, base_url='http://x') as client:\n"
        "        print((await client.get('/')).text)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for code in (worker, worker, worker + end):
        run(code, environment)
    text = run(reader, environment)
    assert 'outbox_died_total{topic="orders"} 6.0' in text
    assert "outbox_leases_held 64.0" in text


def run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout
