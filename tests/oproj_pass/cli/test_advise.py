"""`oproj advise`: an answer from a config.json and a machine's name."""

import json


def test_answers_in_every_form(oproj, llama, tmp_path):
    page = tmp_path / "advice.html"
    result = oproj("advise", llama(), "--machine", "h200", "--batch", 8, "--html", page, "--json")
    assert result.exit_code == 1, result.output  # two tiny layers free less than a communicator takes
    document = json.loads(result.stdout)
    assert {option["oproj_tensor_parallel_size"] for option in document["options"]} == {2, 4, 8}
    assert document["recommendation"]["oproj_tensor_parallel_size"] == 0
    assert "Recommended: do not shard" in page.read_text()


def test_a_quantisation_of_unknown_bytes_is_refused_unless_said(oproj, llama):
    path = llama(quantization_config={"quant_method": "gptq", "bits": 4})
    refused = oproj("advise", path, "--machine", "a2")
    assert refused.exit_code == 2
    assert "--scheme" in refused.output
    assert oproj("advise", path, "--machine", "a2", "--scheme", "w8a8").exit_code == 1


def test_an_unknown_machine_is_refused_before_anything_is_built(oproj, llama):
    result = oproj("advise", llama(), "--machine", "h20")
    assert result.exit_code == 2
    assert "did you mean" in result.output
