"""Tiny passes over a tiny graph, for what runs and records passes."""

import torch
from torch.fx import symbolic_trace

from oproj_pass.passes import PassRecord


class AddOne:
    name = "add_one"

    def __call__(self, gm, example_inputs):
        (output,) = gm.graph.find_nodes(op="output")
        with gm.graph.inserting_before(output):
            added = gm.graph.call_function(torch.add, (output.args[0], 1))
        output.args = (added,)
        return PassRecord(self.name, changed=(added,), seconds=0.25)


class Nothing:
    name = "nothing"

    def __call__(self, gm, example_inputs):
        return PassRecord(self.name)


def graph():
    gm = symbolic_trace(lambda x: x * 2)
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty(3)
    return gm
