"""The report of a run, for a terminal of 100 columns or more."""

from rich.console import Console, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from oproj_pass.demo.chart import load_chart
from oproj_pass.demo.facts import Answer, DemoFacts, RankFacts

_NEXT = {
    "oproj explain CONFIG.JSON": "what a model of yours would free",
    "oproj check -- vllm serve ...": "may its deployment shard, and what to set",
    "oproj demo --json": "every number of this run",
    "docs/start.md": "two ranks by hand",
}


def render(facts: DemoFacts, console: Console) -> None:
    """Print what was sharded, how the ranks were loaded, the answers, the refusal and the verdict."""
    size = facts.tensor_parallel_size
    console.print(
        f"\n[bold]{facts.model}[/], float32, {facts.num_layers} layers: {len(facts.ranks)} data-parallel "
        f"ranks, every role sharded over {size} of them\n",
        highlight=False,
    )
    sections: dict[str, RenderableType] = {
        "Memory": memory_table(facts),
        "Load": load_chart(facts),
        "Answers": answer_table(facts),
        "Preemption": preemptions(facts.answers),
        "A step that no captured size fits": refusal_panel(facts.ranks),
    }
    for title, body in sections.items():
        console.print(Rule(Text(title, "bold"), style="dim", align="left"))
        console.print(Padding(body, (0, 0, 1, 2)))
    console.print(verdict(facts))
    console.print(next_steps())


def memory_table(facts: DemoFacts) -> Table:
    """Bytes of each rank's sharded weights, as its storages say, and what each role freed of them."""
    roles = list(facts.ranks[0].freed_nbytes_by_role)
    titles = [role.replace("+", "+\n") for role in roles]
    table = _table("rank", "weights", "before", "freed", "share", *titles, justify="right", gap=2)
    for rank in facts.ranks:
        table.add_row(str(rank.rank), str(len(rank.weights)), *_memory([rank], roles))
    table.add_row("all", "", *_memory(facts.ranks, roles), style="bold")
    return table


def _memory(ranks: list[RankFacts], roles: list[str]) -> list[str]:
    """Before, freed and its share of all these ranks together, and freed by role."""
    full, freed = (sum(getattr(rank, f"{what}_nbytes") for rank in ranks) for what in ("full", "freed"))
    by_role = [_mib(sum(rank.freed_nbytes_by_role[role] for rank in ranks)) for role in roles]
    return [_mib(full), _mib(freed), f"{freed / full:.1%}", *by_role]


def answer_table(facts: DemoFacts) -> Table:
    """Every answer, and how many of its tokens are the unsharded model's."""
    table = _table("request", "rank", "step")
    table.add_column("prompt and answer", ratio=1)
    table.add_column("equal tokens", justify="right")
    for rank in facts.ranks:
        for answer in rank.answers:
            text = Text(answer.prompt, "bold").append("\n" + " ".join(answer.text.split()), "not bold")
            equal = f"{answer.num_equal}/{len(answer.expected_token_ids)} {_mark(answer.equal)}"
            if answer.finish_reason == "abort":
                equal += "\naborted"
            table.add_row(answer.request_id, str(rank.rank), str(answer.arrival_step), text, equal)
    return table


def preemptions(answers: list[Answer]) -> Text:
    """What became of the requests that had to make room for an urgent one."""
    text = Text()
    for answer in answers:
        if answer.num_preemptions:
            text.append(f"{answer.request_id} ", "bold")
            text.append("was offloaded, came back into a slot and went on.\n")
        if answer.error is not None:
            text.append(f"{answer.request_id} ", "bold")
            text.append(f"was aborted: {answer.error}\n")
    text.rstrip()
    return text or Text("none")


def refusal_panel(ranks: list[RankFacts]) -> Panel:
    """The error that the ranks of one group raised together."""
    refused = {rank.rank: rank.refusal for rank in ranks if rank.refusal is not None}
    if not refused:
        return Panel("was not refused", border_style="red")
    first = next(iter(refused.values()))
    return Panel(
        first.message,
        title=f"{first.error} on ranks {' and '.join(map(str, refused))}",
        subtitle="refused before any of its exchanges; the ranks went on serving",
        border_style="yellow",
        padding=(1, 2),
    )


def verdict(facts: DemoFacts) -> Text:
    """The one line that the exit status stands for."""
    answers = facts.answers
    differing = [answer.request_id for answer in answers if not answer.equal]
    if differing:
        count = f"{len(differing)} of {len(answers)} answers differ"
        return Text(f"✗ {count} from the unsharded model's: {', '.join(differing)}.", "bold red")
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    return Text(
        f"✓ All {num_tokens} tokens of {len(answers)} answers equal the unsharded model's.", "bold green"
    )


def next_steps() -> Table:
    """What to try after this."""
    table = Table("next", "", box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for command, purpose in _NEXT.items():
        table.add_row(Text(command, "bold"), Text(purpose))
    return table


def _table(*headers: str, justify: JustifyMethod = "left", gap: int = 3) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header, justify=justify)
    return table


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _mark(good: bool) -> str:
    return "[green]✓[/]" if good else "[red]✗[/]"
