# SPDX-License-Identifier: Apache-2.0
"""The router learns the usage of every stream it can; no client sees what it did not ask for."""

import json

import pytest

from peers.openai_api import CHAT, USAGE, USAGE_ASK

# stream_options of the client: what it says, and whether it asked for usage.
OPTIONS = {
    "absent": ({}, False),
    "null": ({"stream_options": None}, False),
    "empty": ({"stream_options": {}}, False),
    "false": ({"stream_options": {"include_usage": False}}, False),
    "other keys": ({"stream_options": {"continuous_usage_stats": False}}, False),
    "true": ({"stream_options": {"include_usage": True}}, True),
}


def asks_usage(request):
    options = request.json().get("stream_options") or {}
    return options.get("include_usage") is True


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("is_honoured", [True, False], ids=["honoured", "ignored"])
def test_usage_reaches_exactly_those_who_asked(router, worker, api, options, is_honoured):
    fields, client_asked = OPTIONS[options]
    body = api.request(stream=True, **fields)
    client = router.connect()
    client.post(api, body)
    request = worker.expect()
    seen = request.body()
    # only a body that says nothing of stream_options is added to
    at = body.index(b"{") + 1
    assert seen == (body[:at] + USAGE_ASK + body[at:] if options == "absent" else body)
    with_usage = is_honoured and asks_usage(request)
    request.stream(api.stream(with_usage=with_usage))

    answer = client.answer()

    assert answer.read_all() == b"".join(api.stream(with_usage=with_usage and client_asked))
    line = router.request_line(answer)
    if with_usage:
        assert line["prompt_tokens"] == USAGE["prompt_tokens"]
        assert line["completion_tokens"] == USAGE["completion_tokens"]
        assert line["cached_tokens"] == 16
    else:
        assert line.get("prompt_tokens") is None, "unknown is not a number"
        assert line.get("cached_tokens") is None


@pytest.mark.parametrize("cut", ["each byte", "one piece", "with the event before",
                                 "with the end behind"])
def test_the_event_is_taken_out_however_it_is_cut(router, worker, api, cut):
    events = api.stream(with_usage=True)
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    before, usage, done = b"".join(events[:-2]), events[-2], events[-1]
    pieces = {
        "each byte": [before] + [usage[at : at + 1] for at in range(len(usage))] + [done],
        "one piece": [before + usage + done],
        "with the event before": [before + usage[:-1], usage[-1:] + done],
        "with the end behind": [before, usage + done[:3], done[3:]],
    }[cut]
    for piece in pieces:
        request.send_chunk(piece)
    request.end_stream()

    answer = client.answer()

    assert answer.read_all() == b"".join(api.stream())
    assert router.request_line(answer)["cached_tokens"] == 16


def test_usage_beside_choices_is_left_alone(router, worker):
    """Some engines put usage into every event; only the one without choices was asked for."""
    events = [CHAT._chunk([CHAT._choice("Tea", None)], usage={"prompt_tokens": 9}),
              CHAT._chunk([CHAT._choice(None, "stop")], usage=None)]
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream([*events, CHAT.usage_event(), b"data: [DONE]\n\n"])

    assert client.answer().read_all() == b"".join(events) + b"data: [DONE]\n\n"


def test_an_event_without_choices_and_without_usage_is_left_alone(router, worker):
    filters = CHAT._chunk([], prompt_filter_results=[{"prompt_index": 0}])
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream([filters, *CHAT.stream()])

    assert client.answer().read_all() == filters + b"".join(CHAT.stream())


def test_a_text_that_looks_like_the_event_is_left_alone(router, worker):
    looks = '{"choices":[],"usage":{"prompt_tokens":1}}'
    event = CHAT.event(f"{looks}\n\ndata: {looks}\n\n")
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream([event, *CHAT.stream(with_usage=True)])

    assert client.answer().read_all() == event + b"".join(CHAT.stream())


def test_a_stream_that_dies_behind_the_taken_event_still_gets_its_error(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    before = b"".join(CHAT.stream()[:-1])
    request.send_chunk(before + CHAT.usage_event())
    answer = client.answer()
    answer.read(len(before))
    request.end_by("rst")

    rest = answer.read_all()[len(before):]

    assert b'"error"' in rest and b"usage" not in rest and b"[DONE]" not in rest


def test_an_engine_that_refuses_it_is_not_asked_again_and_the_request_succeeds(router, worker, api):
    body = api.request(stream=True)
    client = router.connect()
    client.post(api, body)
    first = worker.expect()
    assert asks_usage(first)
    first.answer(b'{"error":{"message":"unknown field stream_options"}}', 400)

    second = worker.expect()
    assert second.body() == body
    second.stream(api.stream())

    answer = client.answer()
    assert answer.status == 200
    assert answer.read_all() == b"".join(api.stream())

    client.post(api, body)
    third = worker.expect()
    assert third.body() == body
    third.stream(api.stream())
    assert client.answer().read_all() == b"".join(api.stream())


def test_a_400_that_is_the_clients_own_fault_reaches_it(router, worker):
    """Asked again without our addition the engine still refuses: it was not the addition."""
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().answer(b'{"error":{"message":"no"}}', 400)
    worker.expect().answer(b'{"error":{"message":"no"}}', 400)
    answer = client.answer()
    assert answer.status == 400
    assert answer.read_all() == b'{"error":{"message":"no"}}'

    # and the engine is not thought to refuse usage for that
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    assert asks_usage(request)
    request.stream(CHAT.stream(with_usage=True))
    client.answer().read_all()


def test_a_400_to_what_the_client_asked_itself_is_not_repeated(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True, stream_options={"include_usage": True}))
    worker.expect().answer(b'{"error":{"message":"no"}}', 400)
    assert client.answer().status == 400
    worker.assert_no_request()


def test_nothing_is_asked_where_it_is_switched_off(start_router, worker, api):
    router = start_router([worker], "--no-usage-ask")
    body = api.request(stream=True)
    client = router.connect()
    client.post(api, body)
    request = worker.expect()
    assert request.body() == body
    request.stream(api.stream(with_usage=True))
    # what nobody asked for and comes all the same is the engine's own habit, and passes
    assert client.answer().read_all() == b"".join(api.stream(with_usage=True))


def test_usage_of_an_answer_that_is_not_streamed_is_learned(router, worker, api):
    client = router.connect()
    body = api.request()
    client.post(api, body)
    request = worker.expect()
    assert request.body() == body
    request.answer(api.answer())

    answer = client.answer()

    assert answer.read_all() == api.answer()
    line = router.request_line(answer)
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (20, 4, 16)


def test_cached_tokens_that_are_not_said_are_unknown_and_not_zero(router, worker):
    usage = {"prompt_tokens": 20, "completion_tokens": 4, "prompt_tokens_details": None}
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer(usage=usage))
    answer = client.answer()
    answer.read_all()

    line = router.request_line(answer)

    assert line["prompt_tokens"] == 20
    assert line.get("cached_tokens") is None


def test_prediction_and_truth_are_compared_in_a_metric(router, worker):
    text = "a long common beginning " * 200
    usage = json.loads(json.dumps(USAGE))
    for cached in (0, 16):
        usage["prompt_tokens_details"]["cached_tokens"] = cached
        client = router.connect()
        client.post(CHAT, CHAT.request(text))
        worker.expect().answer(CHAT.answer(usage=usage))
        client.answer().read_all()
    router.log.wait_count("request", 2)

    named = {name: value for name, value in router.metrics().items()
             if name.startswith("samovar_router_") and "cached_tokens" in name}

    assert sum(named.values()) > 0, named


def test_a_promised_length_is_not_kept_where_an_event_is_taken_out(router, worker, api):
    """The length that the client is told is that of what it gets."""
    events = api.stream(with_usage=True)
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.body()
    request.send_head(content_type="text/event-stream", content_length=len(b"".join(events)))
    request.send(b"".join(events))
    request.finish()

    answer = client.answer()

    assert answer.get("content-length") is None and answer.framing == "chunked"
    assert answer.read_all() == b"".join(api.stream())
    client.post(api, api.request())
    worker.expect().answer(api.answer())
    assert client.answer().read_all() == api.answer()
