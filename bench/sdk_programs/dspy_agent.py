"""DSPy's ReAct, whose protocol is text."""

import common

common.trace_all()

import dspy  # noqa: E402

dspy.configure(
    lm=dspy.LM(
        f"openai/{common.MODEL}",
        api_base=f"{common.URL}/v1",
        api_key="none",
        cache=False,
        temperature=1.0,
        max_tokens=16000,
        num_retries=0,
    )
)


def answer(question: str, scenario: str) -> str:
    react = dspy.ReAct("question -> answer", tools=[common.get_weather], max_iters=3)
    return react(question=question).answer


common.play(answer)
