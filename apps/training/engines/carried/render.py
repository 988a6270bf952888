"""`python render.py IN OUT FORM`: renders conversations with the model's chat template, including
tools.

Engines that accept only messages without tools, or plain text, then train on exactly the tokens
that Flywheel's own trainer would use.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer


def rendered(tokenizer, row):
    options = {"tokenize": False, "add_generation_prompt": True}
    return tokenizer.apply_chat_template(row["messages"], tools=row["tools"] or None, **options)


def stops(tokenizer):
    """The texts that end an answer."""
    file = Path("model/generation_config.json")
    ids = (
        json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    )
    until = tokenizer.convert_ids_to_tokens(
        [one for one in (ids if isinstance(ids, list) else [ids]) if one is not None]
    )
    return {
        *until,
        tokenizer.eos_token,
        *(["<|im_end|>"] if "<|im_end|>" in tokenizer.get_vocab() else []),
    } - {None}


def end_of_answer(said, begin, text, stops):
    """(place, mark) of the first mark after the answer's text: some templates end the conversation
    with another one. (-1, "") if there is none.
    """
    at = said.find(text.strip(), begin) if begin else said.rfind(text.strip())
    after = [(said.find(stop, at + len(text.strip())), stop) for stop in stops] if at >= 0 else []
    if marks := [mark for mark in after if mark[0] >= 0]:
        return min(marks)
    last = max(((said.rfind(stop, begin), stop) for stop in stops), default=(-1, ""))
    return last if last[0] >= 0 else (-1, "")


def answered(tokenizer, row, history, turn):
    """(prompt, answer with the token that ends it) as Flywheel's own training has them: the token
    that the template writes, or else the tokenizer's end token, and nothing after it.
    """
    prompt = rendered(tokenizer, row | {"messages": history})
    options = {"tokenize": False, "tools": row["tools"] or None}
    said = tokenizer.apply_chat_template([*history, turn], **options)
    begin = len(prompt) if said.startswith(prompt) else 0
    end, stop = end_of_answer(said, begin, turn["content"] or "", stops(tokenizer))
    if end < 0 and not tokenizer.eos_token:
        raise SystemExit(
            "The chat template does not mark the end of an answer, and the tokenizer has no"
            " eos_token."
        )
    last = stop if end >= 0 else tokenizer.eos_token
    if said.startswith(prompt):
        return (
            prompt,
            (said[len(prompt) : end] if end >= 0 else said[len(prompt) :].rstrip()) + last,
        )
    if turn.get("tool_calls"):
        raise SystemExit(
            f"Row {row['key']}: the chat template does not write this tool call after its prompt."
        )
    return prompt, turn["content"] + last


def ended(tokenizer, row, completion):
    """A completion with the token that ends it."""
    return answered(tokenizer, row, row["messages"], {"role": "assistant", "content": completion})[
        1
    ]


def turns_of(row):
    return row.get("turns") or [{"role": "assistant", "content": row["completion"]}]


def episode(tokenizer, row):
    """Rows of [text, whether it is learned]: one row per episode if the template keeps earlier
    turns unchanged, otherwise one per turn.

    As in Flywheel's own training, each answer follows what the agent was shown and includes the
    token that ends it.
    """
    made, so_far = [], None
    for at, turn in enumerate(turns := turns_of(row)):
        if turn["role"] != "assistant":
            continue
        history = [*row["messages"], *turns[:at]]
        prompt, answer = answered(tokenizer, row, history, turn)
        if so_far is None or not prompt.startswith(so_far):
            made.append([])
            so_far = ""
        made[-1] += [[prompt[len(so_far) :], False], [answer, True]]
        so_far = prompt + answer
    return made


def tokens(tokenizer, pieces):
    """{input_ids, completion_mask}; the mask is 1 only for what is learned."""
    ids, mask = [], []
    for text, learned in pieces:
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += found
        mask += [int(learned)] * len(found)
    return {"input_ids": ids, "completion_mask": mask}


def pair(tokenizer, row):
    answers = {name: ended(tokenizer, row, row[name]) for name in ("chosen", "rejected")}
    return {"prompt": rendered(tokenizer, row)} | answers


def nemo_pair(tokenizer, row):
    found = pair(tokenizer, row)
    completions = [
        {"rank": rank, "completion": [{"role": "assistant", "content": found[name]}]}
        for rank, name in enumerate(("chosen", "rejected"))
    ]
    return {"context": [{"role": "user", "content": found["prompt"]}], "completions": completions}


def pieces(tokenizer, row):
    """Several rows if the episode has to be split."""
    roles = {False: "user", True: "assistant"}
    return [
        {"messages": [{"role": roles[learned], "content": text} for text, learned in one]}
        for one in episode(tokenizer, row)
    ]


def verl(tokenizer, row):
    """The whole prompt as one message; launch.sh gives veRL a chat template that adds nothing to
    it.
    """
    prompt = [{"role": "user", "content": rendered(tokenizer, row)}]
    truth = {"style": "rule", "ground_truth": row["row"]}
    return {
        "data_source": "flywheel",
        "prompt": prompt,
        "ability": "agent",
        "reward_model": truth,
        "extra_info": {"index": row["index"], "key": row["key"]},
    }


def openrlhf(tokenizer, row):
    return {"input": rendered(tokenizer, row), "label": row["row"]}


def openrlhf_sft(tokenizer, row):
    return {"input": rendered(tokenizer, row), "output": ended(tokenizer, row, row["completion"])}


FORMS = {
    "verl": verl,
    "openrlhf": openrlhf,
    "openrlhf_sft": openrlhf_sft,
    "pair": pair,
    "nemo_pair": nemo_pair,
    "pieces": pieces,
}


def main(source, target, form):
    tokenizer = AutoTokenizer.from_pretrained("model")
    rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
    made = [FORMS[form](tokenizer, row) for row in rows]
    lines = [one for row in made for one in (row if isinstance(row, list) else [row])]
    Path(target).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
