"""Reads FX graphs: operators, arguments, provenance, effects, stored inputs, collectives.

What all passes that touch a graph stand on, so it is here that torch is checked.
"""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass.passes")
