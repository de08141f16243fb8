"""An answer is kept for the same question of the same versions, and for no other."""

import importlib
import os

import pytest

from oproj_pass.cli import trace_cache
from oproj_pass.cli.trace_cache import TraceCache, key_of


@pytest.fixture
def question(tmp_path, monkeypatch):
    """A config and a package that it depends on; asks for the key."""
    config = tmp_path / "config.json"
    config.write_text("{}")
    package = tmp_path / "site" / "traced_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(trace_cache, "_SOURCES", ("traced_package",))
    return lambda **asked: key_of(config, {"size": 8} | asked)


def test_the_same_question_has_one_key(question):
    assert question() == question()


SOURCE = "site/traced_package/__init__.py"
CHANGES = {
    "another config": lambda folder, _: (folder / "config.json").write_text("{ }"),
    "another source": lambda folder, _: (folder / SOURCE).write_text("x = 1"),
    "a source written again": lambda folder, _: os.utime(
        folder / "site/traced_package/__init__.py", ns=(1, 1)
    ),
    "a source more": lambda folder, _: (folder / "site/traced_package/more.py").touch(),
    "another version": lambda folder, _: (folder / "site/transformers-9.9.dist-info").mkdir(),
    "a switch of torch": lambda _, monkeypatch: monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_holds_all_that_the_answer_depends_on(question, change, tmp_path, monkeypatch):
    before = question()
    CHANGES[change](tmp_path, monkeypatch)
    importlib.invalidate_caches()
    assert question() != before


def test_another_question_has_another_key(question):
    assert question(size=4) != question()


def test_keeps_what_it_was_given(tmp_path):
    cache = TraceCache(tmp_path / "traces")
    assert cache.get("key") is None
    cache.put("key", b'{"a": 1}\n')
    assert cache.get("key") == b'{"a": 1}\n'
    assert [entry.name for entry in (tmp_path / "traces").iterdir()] == ["key"]


DAMAGES = (lambda kept: b"", lambda kept: b"no digest", lambda kept: kept[:-1], lambda kept: kept + b" ")


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_entry_that_is_not_whole_is_not_there(tmp_path, damage):
    cache = TraceCache(tmp_path)
    cache.put("key", b'{"a": 1}')
    kept = (tmp_path / "key").read_bytes()
    (tmp_path / "key").write_bytes(damage(kept))
    assert cache.get("key") is None
    cache.put("key", b'{"a": 1}')
    assert cache.get("key") is not None


def test_no_folder_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    for cache in (TraceCache(None), TraceCache(tmp_path / "file" / "traces")):
        cache.put("key", b"{}")
        assert cache.get("key") is None


def test_drops_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_cache, "_KEPT", 2)
    cache = TraceCache(tmp_path)
    for age, key in enumerate("abc"):
        cache.put(key, b"{}")
        if (tmp_path / key).exists():
            os.utime(tmp_path / key, (age, age))
    assert {entry.name for entry in tmp_path.iterdir()} == {"b", "c"}


def test_lies_where_the_xdg_specification_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    TraceCache.of_user().put("key", b"{}")
    assert (tmp_path / "oproj_pass" / "traces" / "key").exists()
