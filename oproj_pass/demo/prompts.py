"""Which prompt reaches which rank at which step. The load is uneven on purpose.

Rank 0 is overfull and has to preempt twice, rank 1 pauses, rank 2 starts late and rank 3 stops early.

SmolLM2-135M-Instruct answers each prompt without a close call: its best two logits are at least 0.02 apart at
every token, far more than float32 rounds, so equal tokens do not depend on the machine.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """One prompt on its way: the rank that serves it and the step at which it gets there."""

    rank: int
    step: int
    prompt: str
    urgent: bool = False


ARRIVALS = (
    Arrival(0, 0, "Write a short story about a lighthouse keeper."),
    Arrival(0, 0, "What should I do if I lose my keys?"),
    Arrival(0, 2, "Explain how a bicycle stays upright."),
    Arrival(0, 28, "Give me three tips for better sleep.", urgent=True),
    Arrival(0, 48, "What is the largest ocean on Earth?", urgent=True),
    Arrival(1, 0, "What is the capital of France?"),
    Arrival(1, 60, "Why is the sky blue?"),
    Arrival(2, 40, "Describe the water cycle."),
    Arrival(2, 44, "Give me a recipe for pancakes."),
    Arrival(3, 0, "What does a compiler do?"),
    Arrival(3, 10, "What is photosynthesis?"),
)
