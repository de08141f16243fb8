"""The tables of docs/coverage.md, from the families that the tests build.

`python -m tests.docs.coverage_tables` prints them.
"""

from tests.distributed.test_transformers import FAMILIES as ON_RANKS
from tests.passes.sites.test_zoo import FAMILIES
from tests.passes.sites.test_zoo_hybrids import HYBRIDS

PROVEN = {config for config, *_ in ON_RANKS.values()}


def attention_table():
    rows = ["| architecture | projection | written as | bias | numbers |", "|---|---|---|---|---|"]
    seen = {}
    for family in FAMILIES:
        path = _short(family.expected())
        bias = seen.get(family.config, [None] * 3)[2]
        both = "optional" if bias is not None else ("yes" if family.bias else "no")
        seen[family.config] = (path, family.form, both)
    for config, (path, form, bias) in sorted(seen.items(), key=lambda item: _name(item[0]).lower()):
        rows.append(f"| {_name(config)} | {path} | `{form}` | {bias} | {_numbers(config)} |")
    return "\n".join(rows)


def hybrid_table():
    rows = ["| architecture | projection | left alone | numbers |", "|---|---|---|---|"]
    for hybrid in sorted(HYBRIDS, key=lambda hybrid: _name(hybrid.config).lower()):
        site = _short(hybrid.sites) if hybrid.sites else "none: no attention"
        rows.append(
            f"| {_name(hybrid.config)} | {site} | {_short(hybrid.mixers)} | {_numbers(hybrid.config)} |"
        )
    return "\n".join(rows)


def _name(config):
    return config.removesuffix("Config").removesuffix("Text")


def _numbers(config):
    return "over ranks" if config in PROVEN else ""


def _short(paths):
    """The module's own path within its layer, each once."""
    tails = dict.fromkeys(".".join(_after_index(path.split("."))) for path in paths)
    return ", ".join(f"`{tail}`" for tail in tails)


def _after_index(parts):
    last = max(i for i, part in enumerate(parts) if part.isdigit())
    return parts[last + 1 :]


if __name__ == "__main__":
    print(attention_table(), hybrid_table(), sep="\n\n")
