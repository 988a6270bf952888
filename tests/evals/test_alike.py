"""Which requests look like the same one, by their words: in several scripts, long and short."""

from __future__ import annotations

import pytest

from apps.evals.proposals.alike import LOOKED_UP, TRIED, WORDS, Wish, likeness


def like(one: str, other: str) -> str:
    wishes = [Wish.of([{"role": "user", "content": text}], {}) for text in (one, other)]
    found = likeness(*wishes)
    return found[1] if found else ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # one word, in five scripts
        ("Yes.", "Yes!"),
        ("はい。", "はい"),
        ("好的。", "好的"),
        ("네, 맞아요.", "네 맞아요"),
        ("Да.", "да"),
        # one thing differs in a short text
        ("Cancel my order.", "Cancel my booking."),
        ("注文をキャンセルしてください。", "予約をキャンセルしてください。"),
        ("注文をキャンセルしたいのですが。", "注文を確認したいのですが。"),
        ("请帮我取消订单", "请帮我查询订单"),
        ("주문을 취소해 주세요.", "예약을 취소해 주세요."),
        ("Отмените мой заказ, пожалуйста.", "Отмените мою бронь, пожалуйста."),
        # polite words around different wishes
        (
            "いつもお世話になっております。請求書を再発行していただけますでしょうか。",
            "いつもお世話になっております。配送先を変更していただけますでしょうか。",
        ),
        (
            "您好，请问可以帮我把收货地址改成公司吗？谢谢。",
            "您好，请问可以帮我把发票重新开一张吗？谢谢。",
        ),
        ("안녕하세요, 배송지를 변경해 주세요.", "안녕하세요, 영수증을 다시 보내 주세요."),
        # other numbers
        (
            "Please refund the broken lamp of order 58213, it arrived damaged.",
            "Please refund the broken lamp of order 99120, it arrived damaged.",
        ),
        (
            "注文番号58213の壊れた照明器具の代金を返金してください。",
            "注文番号99120の壊れた照明器具の代金を返金してください。",
        ),
        ("请退还订单58213中损坏台灯的全部货款", "请退还订单99120中损坏台灯的全部货款"),
        (
            "주문 58213 의 고장난 램프 대금을 모두 환불해 주세요",
            "주문 99120 의 고장난 램프 대금을 모두 환불해 주세요",
        ),
        (
            "Верните деньги за сломанную лампу из заказа 58213 сегодня",
            "Верните деньги за сломанную лампу из заказа 99120 сегодня",
        ),
    ],
)
def test_texts_that_say_little_or_differ_in_a_number_are_not_alike(one: str, other: str) -> None:
    assert like(one, other) == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "Please refund the broken lamp of order 58213, it arrived damaged.",
            "The lamp in order 58213 arrived broken and damaged, refund me.",
        ),
        (
            "注文番号58213の壊れた照明器具の代金を全額返金してください。",
            "注文番号58213の壊れた照明器具の代金を全額返金お願いします。",
        ),
        ("请退还订单58213中损坏台灯的全部货款", "订单58213中损坏台灯的全部货款请尽快退还"),
        (
            "주문 58213 의 고장난 램프 대금을 모두 환불해 주세요",
            "고장난 램프 대금을 모두 환불해 주세요, 주문 58213",
        ),
        (
            "Верните деньги за сломанную лампу из заказа 58213 сегодня",
            "Сегодня верните деньги за сломанную лампу, заказ 58213",
        ),
    ],
)
def test_texts_with_nearly_the_same_words_are_alike(one: str, other: str) -> None:
    assert like(one, other) == WORDS


def ran(tool: str, **args: str) -> dict:
    return {"tool": tool, "args": args, "content": "{}"}


SEAT = ran("update_seat", booking="OBUT9V", user="ada_1815", seat="near the window")


@pytest.mark.parametrize(
    ("one", "other", "text", "why"),
    [
        ([SEAT], [SEAT], "Mein Platz soll am Fenster sein.", TRIED),
        ([SEAT], [ran("cancel_booking", booking="OBUT9V", user="ada_1815")], "Mein Platz!", ""),
        ([SEAT], [ran("update_seat", booking="XX77YY", user="eve_1901")], "Mein Platz!", ""),
        (
            [ran("get_booking", booking="OBUT9V", user="ada_1815")],
            [ran("get_booking", booking="OBUT9V", user="ada_1815")],
            "I need a seat at the window.",
            LOOKED_UP,
        ),
        (
            [ran("get_booking", booking="OBUT9V", user="ada_1815")],
            [ran("get_booking", booking="OBUT9V", user="ada_1815")],
            "Cancel my trip.",
            "",
        ),
        (  # a date is no thing, and one customer has many wishes
            [ran("update_seat", user="ada_1815", day="2024-05-01")],
            [ran("update_seat", user="ada_1815", day="2024-05-01")],
            "Mein Platz!",
            "",
        ),
    ],
)
def test_what_failed_runs_did_says_that_their_requests_may_be_the_same(
    one: list, other: list, text: str, why: str
) -> None:
    wishes = [
        Wish.of([{"role": "user", "content": words}], {}, calls)
        for words, calls in (
            ("Please give me a seat at the window next to Bob.", one),
            (text, other),
        )
    ]
    found = likeness(*wishes)
    assert (found[1] if found else "") == why
