import pytest

from oproj_pass.capture import load_histogram
from oproj_pass.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        '{"8": 2, "16": 1, "0": 9}',
        "[8, 0, 16, 8]",
        "8\n16\n\n8\n",
        "  16\r\n8\n8",
        "0\n8\n16\n0\n8\n",
    ],
    ids=["map", "list", "text", "crlf", "idle"],
)
def test_reads_every_form_of_file_alike(tmp_path, text):
    path = tmp_path / "steps"
    path.write_text(text)
    assert load_histogram(path) == {8: 2, 16: 1}
    assert load_histogram(str(path)) == {8: 2, 16: 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[]", "is empty"),
        ("{}", "is empty"),
        ("{", "is not valid JSON"),
        ("8\neight\n", "line 2: 'eight' is not a step size"),
        ("0\n0\n", "is empty"),
        ("8\n0\n-1\n", "line 3: step -1 must be a positive integer"),
        ("[8, 1.5]", "entry 2: step 1.5 must be a positive integer"),
        ("[8, [1]]", r"entry 2: step \[1\] must be a positive integer"),
        ('{"a": 1}', "'a' is not a step size"),
        ('{"8": "x"}', "weight of step 8 must be a number"),
        ('{"8": -1}', "weight of step 8 must be finite and >= 0"),
        ('{"8": 1, " 8": 2}', "two keys name the same step"),
    ],
)
def test_refuses_a_file_naming_it_and_the_entry(tmp_path, text, message):
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_histogram(path)
    assert str(path) in str(caught.value)


def test_refuses_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_histogram(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_histogram(tmp_path / "binary")
