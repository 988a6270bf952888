"""What happens in `bench.sdks`: for each scenario the turns that the provider takes, in words of no
provider.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM = "Be brief."
TOOL, DESCRIPTION = "get_weather", "The weather in a city."
HANDOFF = "(another agent)"  # the tool by which the SDK hands over, whatever its name
OUTAGE = "The model is overloaded."
RAISED = "no such city"


@dataclass(frozen=True)
class Usage:
    """Tokens as OpenAI counts them: the input includes what was cached, the output what was
    thought.
    """

    input: int
    output: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Turn:
    """Tools that the model calls, or what it says; without either the provider fails."""

    usage: Usage
    calls: tuple[tuple[str, dict[str, str]], ...] = ()
    text: str = ""
    thought: str = ""

    @property
    def fails(self) -> bool:
        return not (self.calls or self.text)


@dataclass(frozen=True)
class Scenario:
    title: str
    city: str
    turns: tuple[Turn, ...]
    streams: bool = False

    @property
    def question(self) -> str:
        return f"What is the weather in {self.city}?"


ASKS, ANSWERS, FAILS = Usage(120, 30), Usage(180, 20), Usage(0, 0)


def _calls(*cities: str) -> tuple[tuple[str, dict[str, str]], ...]:
    return tuple((TOOL, {"city": city}) for city in cities)


def _scenario(
    title: str,
    *cities: str,
    first: Usage = ASKS,
    last: Usage = ANSWERS,
    thoughts: tuple[str, str] = ("", ""),
    streams: bool = False,
) -> Scenario:
    """Calls the tool for each city, then answers."""
    said = f"It rains in {' and in '.join(cities)}."
    return Scenario(
        title,
        cities[0],
        (
            Turn(first, _calls(*cities), thought=thoughts[0]),
            Turn(last, text=said, thought=thoughts[1]),
        ),
        streams,
    )


SCENARIOS = {
    "answer": _scenario("call and answer", "Oslo"),
    "raises": Scenario(
        "tool that raises",
        "Atlantis",
        (Turn(ASKS, _calls("Atlantis")), Turn(ANSWERS, text="I do not know Atlantis.")),
    ),
    "error": Scenario("provider error at once", "Outage", (Turn(FAILS),)),
    "relapse": Scenario(
        "error after a tool", "Relapse", (Turn(ASKS, _calls("Relapse")), Turn(FAILS))
    ),
    "stream": _scenario("stream", "Bergen", streams=True),
    "reasoning": _scenario(
        "reasoning",
        "Tromso",
        first=Usage(120, 94, reasoning=64),
        last=Usage(240, 52, reasoning=32),
        thoughts=("The tool knows Tromso.", "The tool says rain."),
    ),
    "state": _scenario("server-side state", "Malmo"),
    "handoff": Scenario(
        "handoff",
        "Turku",
        (
            Turn(Usage(70, 11), ((HANDOFF, {}),)),
            Turn(ASKS, _calls("Turku")),
            Turn(ANSWERS, text="It rains in Turku."),
        ),
    ),
    "parallel": _scenario("parallel calls", "Lima", "Quito"),
    "cached": _scenario(
        "cached tokens",
        "Cairo",
        first=Usage(2000, 30, cached=1536),
        last=Usage(2100, 20, cached=1920),
    ),
}
ALL = tuple(SCENARIOS)


def weather(city: str) -> str:
    """What the tool answers; it raises for a city that is none."""
    if city == "Atlantis":
        raise ValueError(f"{RAISED}: {city}")
    return f"7 °C and rain in {city}"
