"""vLLM's ExampleConnector, which moves KV cache through a folder, for whole prompts.

As it ships it leaves out the last, partly filled block, and an arrival recomputes two tokens at the least. A
transfer from a real prefill node brings every token.
"""

from pathlib import Path

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_connector


def _whole_blocks(num_tokens, block_size):
    return -(-num_tokens // block_size) * block_size


example_connector.align_to_block_size = _whole_blocks  # it moves whole blocks, the last one too


class WholePromptConnector(example_connector.ExampleConnector):
    """An arrival that finds its prompt recomputes the last token alone."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if not self._found_match_for_request(request):
            return 0, False
        return len(request.prompt_token_ids) - 1 - num_computed_tokens, False

    def _found_match_for_prompt(self, prompt_token_ids, mm_hashes):
        return Path(self._generate_foldername_debug(torch.tensor(prompt_token_ids), mm_hashes)).exists()
