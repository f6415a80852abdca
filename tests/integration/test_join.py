# SPDX-License-Identifier: Apache-2.0
"""
What a router tells the agents of its workers: which text each attempt had, how many tokens that
became, what was answered. The agents here are scripted: keys in a real Redis, and a reader.
"""

import json
import threading
import time
from pathlib import Path

import pytest

from peers.api_families import MESSAGES, RESPONSES
from peers.http1 import head_bytes
from peers.openai_api import CHAT, COMPLETIONS, DONE, MODEL, USAGE
from peers.process import wait_until
from peers.residency_wire import ANCHOR, ANSWERED, ROUTED, TEXT, UNKNOWN
from peers.scripted_agent import ScriptedAgent
from peers.worker import ScriptedWorker

REPO = Path(__file__).resolve().parents[2]
TAIL_TOKENS = 3
SURVEY = b"Which river is the longest?"
TEXT_4K = "where is the samovar? " * 180


class Engine(ScriptedWorker):
    """A worker whose prompts are a token for every four bytes, and a tail in chats. It answers by
    itself, with usage; what its /tokenize does is the test's."""

    takes_side_calls = True

    def __init__(self, models=(MODEL,), parents=None):
        self.tokenized = []  # bodies that /tokenize got
        self.surveyed = []  # of them those that ask where tools stand
        self.tokenize_reply = None  # (status, body) instead of the right one
        self.tokenize_gate = None  # an event to wait for
        self.off_by = 0  # tokens that usage says more
        self.says_usage = True
        self.answer_text = "In the kitchen, as ever, and it is hot. " * 10
        self.rendered = []  # (path, body) of what .../render got
        self.render_ids = None  # what it says; None: there is no such endpoint
        self.parents = parents or {}
        super().__init__(models=models)
        self.handler = self.serve

    def ids_of(self, body):
        if "messages" in body:
            text = "".join(message["content"] for message in body["messages"])
            tail = [9] * TAIL_TOKENS if body.get("add_generation_prompt", True) else []
        else:
            text, tail = body["prompt"], []
            if isinstance(text, list):
                return text[0] if isinstance(text[0], list) else text
        return [ord(text[at]) for at in range(0, len(text), 4)] + tail

    def usage_of(self, body):
        count = len(self.ids_of(body)) + self.off_by
        return {**USAGE, "prompt_tokens": count, "completion_tokens": 25,
                "total_tokens": count + 25}

    def serve(self, request):
        raw = request.body()
        body = json.loads(raw)
        if request.target == "/tokenize":
            (self.surveyed if SURVEY in raw else self.tokenized).append(raw)
            if self.tokenize_gate is not None:
                self.tokenize_gate.wait(20)
            ids = self.ids_of(body)
            right = (200, json.dumps({"count": len(ids), "max_model_len": 4096,
                                      "tokens": ids}).encode())
            status, reply = self.tokenize_reply or right
            request.answer(reply, status)
            return
        if request.target.endswith("/render"):
            self.rendered.append((request.target, raw))
            reply = {"request_id": "r", "token_ids": self.render_ids, "sampling_params": {}}
            if self.render_ids is None:
                request.answer(b"{}", 404)
            else:
                request.answer(json.dumps([reply] if "completions" in request.target and "chat"
                                          not in request.target else reply).encode())
            return
        if request.target in (RESPONSES.path, MESSAGES.path):
            api = RESPONSES if request.target == RESPONSES.path else MESSAGES
            request.answer(api.answer())
            return
        api = CHAT if request.target == CHAT.path else COMPLETIONS
        usage = self.usage_of(body) if self.says_usage else None
        if not body.get("stream"):
            answer = json.loads(api.answer(self.answer_text, usage or USAGE))
            if usage is None:
                del answer["usage"]
            request.answer(json.dumps(answer).encode())
            return
        events = api.stream([self.answer_text])
        if usage is not None:
            events.insert(-1, api.usage_event(usage))
        request.stream(events)

    def _answer_probe(self, wire, path):
        if path != "/v1/models":
            super()._answer_probe(wire, path)
            return
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "scripted",
                 "parent": self.parents.get(name)} for name in self.models]
        body = json.dumps({"object": "list", "data": data}).encode()
        wire.send(head_bytes("HTTP/1.1 200 Probed", {"content-type": "application/json",
                                                     "content-length": len(body)}) + body)
        with self._probed:
            self.probes[path] += 1
            self._probed.notify_all()


@pytest.fixture
def start_engine():
    engines = []

    def create(**options):
        engines.append(Engine(**options))
        return engines[-1]

    yield create
    for engine in engines:
        engine.stop()


@pytest.fixture
def engine(start_engine):
    return start_engine()


@pytest.fixture
def start_telling_router(start_router, redis, secret_file):
    def create(workers, *flags):
        return start_router(workers, "--redis", redis.url, "--secret-file", secret_file, *flags)
    return create


@pytest.fixture
def router(start_telling_router, engine):
    return start_telling_router([engine])


@pytest.fixture
def agent(redis, engine, router):
    return seen_agent(ScriptedAgent(redis, engine, router), router)


def anchors(router, outcome=None):
    """How many anchors had that outcome, or any."""
    found = {key.split('"')[1]: value for key, value in router.metrics().items()
             if key.startswith("samovar_router_anchors_total")}
    return sum(found.values()) if outcome is None else found[outcome]


def ask(router, api, body):
    answer = router.post(api, body)
    assert answer.status == 200
    return router.request_line(answer)


def seen_agent(agent, *routers):
    """Until routers know of the agent: a prompt too short to be told shows it."""
    for router in routers:
        wait_until(lambda router=router:
                   ask(router, COMPLETIONS, COMPLETIONS.request("tea"))["anchor"] != "no_agent",
                   "the agent is seen")
    return agent


def wait_notes(agent, count):
    wait_until(lambda: len(agent.notes()) >= count,
               lambda: f"{count} notes, there are {agent.notes()}")
    return agent.notes()


def wait_outcome(router, outcome, count=1):
    wait_until(lambda: anchors(router, outcome) >= count,
               lambda: f"{count} {outcome}, there are " + str({
                   name: count for name, count in router.metrics().items()
                   if "anchors_total" in name and count}))


# --- what is told ---

@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_text_tokens_and_answer_of_an_attempt(router, engine, agent, api, stream):
    body = api.request(TEXT_4K, stream=stream)
    answer = router.post(api, body)

    routed, anchor, answered = wait_notes(agent, 3)

    assert [routed.kind, anchor.kind, answered.kind] == [ROUTED, ANCHOR, ANSWERED]
    assert routed.attempt == anchor.attempt == answered.attempt != 0
    assert routed.start == 0
    text_bytes = sum(length for _, length in routed.blocks)
    assert len(TEXT_4K) <= text_bytes <= len(TEXT_4K) + 64
    count = len(engine.ids_of(json.loads(body)))
    assert (anchor.token_count, anchor.cached_tokens) == (count, 16)
    assert anchor.tail_tokens == (TAIL_TOKENS if api is CHAT else 0)
    assert anchor.last_block != 0
    assert answered.last_block == anchor.last_block
    assert answered.token_count == count + 25
    closed = [block for block, length in routed.blocks]
    assert answered.start in closed[-2:], "behind the prompt's last closed block"
    rest = text_bytes - sum(length for block, length in
                            routed.blocks[:closed.index(answered.start) + 1])
    told = sum(length for _, length in answered.blocks) - rest
    assert len(engine.answer_text) <= told <= len(engine.answer_text) + 64
    assert router.request_line(answer)["anchor"] in ("pending", "posted")
    assert anchors(router, "posted") == 1


def test_tokenize_gets_the_body_as_the_client_wrote_it(router, engine, agent):
    body = (b' {"temperature": 0.50, "messages" : [{"content": "' + TEXT_4K.encode() +
            b'", "role":"user"}], "model": "tiny", "odd": [1, {"x": null}]} ')

    router.post(CHAT, body)
    wait_notes(agent, 2)

    assert engine.tokenized[0] == body
    assert engine.tokenized[1] == b' {"add_generation_prompt":false,' + body[2:]
    router.post(CHAT, body)
    wait_notes(agent, 5)
    assert len(engine.tokenized) == 3, "the template's tail is known by now"


def test_the_first_anchors_wait_for_usage_and_later_ones_do_not(start_telling_router, redis, worker):
    """A stream that goes on: whoever counted right so far is told of before it ends."""
    router = start_telling_router([worker])
    worker.handler = lambda request: request.answer(COMPLETIONS.answer())
    agent = seen_agent(ScriptedAgent(redis, worker, router), router)
    worker.handler, worker.takes_side_calls = None, True
    counts = {"count": 40, "tokens": list(range(40))}
    usage = {**USAGE, "prompt_tokens": 40}

    def begin(number):
        client = router.connect()
        client.post(COMPLETIONS, COMPLETIONS.request(f"{number}" + TEXT_4K, stream=True))
        request = worker.expect()
        request.start_stream()
        request.send_chunk(COMPLETIONS.event("In"))
        return client, request

    def end(client, request):
        for event in (COMPLETIONS.finish(), COMPLETIONS.usage_event(usage), DONE):
            request.send_chunk(event)
        request.end_stream()
        client.answer().read_all()

    def serve_tokenize():
        request = worker.expect()
        assert request.target == "/tokenize"
        request.answer(json.dumps(counts).encode())

    client, request = begin("first")
    serve_tokenize()
    end(client, request)
    wait_outcome(router, "posted", 1)
    wait_notes(agent, 2)
    client, request = begin("second")
    serve_tokenize()
    wait_until(lambda: router.metrics()["samovar_router_anchor_calls_total"] == 2, "asked")
    assert len([note for note in agent.notes() if note.kind == ANCHOR]) == 1, "not trusted yet"
    end(client, request)
    wait_outcome(router, "posted", 2)

    client, request = begin("third")
    serve_tokenize()
    wait_outcome(router, "posted", 3)

    end(client, request)
    last = [note for note in wait_notes(agent, 8) if note.kind == ANCHOR][-1]
    assert last.cached_tokens == UNKNOWN, "told before usage came"


def test_a_long_prompt_is_told_in_parts(router, engine, agent):
    router.post(COMPLETIONS, COMPLETIONS.request("0123456789abcdef" * 65536))

    notes = wait_notes(agent, 4)
    told = [note for note in notes if note.kind in (TEXT, ROUTED)]

    assert [note.kind for note in told] == [TEXT, TEXT, ROUTED]
    at = 0
    for note in told:
        assert note.start == at
        at = note.blocks[-1][0]
    assert sum(length for note in told for _, length in note.blocks) == 1 << 20
    assert [note for note in notes if note.kind == ANCHOR][0].token_count == 1 << 18


def test_prompts_of_token_ids_need_no_call(router, engine, agent):
    ids = list(range(1000, 1400))
    router.post(COMPLETIONS, COMPLETIONS.request(ids))
    router.post(COMPLETIONS, COMPLETIONS.request([ids]))

    anchor = [note for note in wait_notes(agent, 4) if note.kind == ANCHOR]

    assert [note.token_count for note in anchor] == [400, 400]
    assert anchor[0].last_block == anchor[1].last_block
    assert engine.tokenized == []


def test_salts_and_loras_have_names_of_their_own(start_engine, start_telling_router, redis):
    engine = start_engine(models=(MODEL, "sql"), parents={"sql": MODEL})
    router = start_telling_router([engine])
    agent = seen_agent(ScriptedAgent(redis, engine, router), router)
    ids = list(range(1000, 1400))

    for fields in ({}, {"cache_salt": "anna"}, {"cache_salt": "ben"}, {"model": "sql"}):
        router.post(COMPLETIONS, COMPLETIONS.request(ids, **fields))

    wait_outcome(router, "posted", 4)
    anchors_told = [note for note in wait_notes(agent, 8) if note.kind == ANCHOR]
    assert len({note.last_block for note in anchors_told}) == 4
    assert {note.token_count for note in anchors_told} == {400}


def test_where_the_engine_says_anchors_only_text_is_told(start_telling_router, redis, engine):
    router = start_telling_router([engine])
    agent = seen_agent(ScriptedAgent(redis, engine, router, has_anchors=True), router)
    before = len(agent.notes())

    line = ask(router, MESSAGES, MESSAGES.request(TEXT_4K))

    notes = wait_notes(agent, before + 2)[before:]
    assert [note.kind for note in notes] == [ROUTED, ANSWERED]
    assert notes[1].last_block == 0 and notes[1].token_count > 0, "its prompt's end it knows itself"
    assert line["anchor"] == "by_engine"
    assert engine.tokenized == []


def test_two_routers_tell_one_agent(start_telling_router, redis, engine):
    routers = [start_telling_router([engine]) for _ in range(2)]
    agent = seen_agent(ScriptedAgent(redis, engine, routers[0]), *routers)

    threads = [threading.Thread(target=router.post, args=(CHAT, CHAT.request(TEXT_4K)))
               for router in routers for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    notes = wait_notes(agent, 30)
    assert len({note.router for note in notes}) == 2
    assert len({note.attempt for note in notes}) == 10
    told = {tuple(note.blocks) for note in notes if note.kind == ROUTED}
    assert len(told) == 1, "one text has one name, whoever names it"
    assert len({note.last_block for note in notes if note.kind == ANCHOR}) == 1


def test_what_was_said_to_a_worker_that_is_gone_does_not_stay(router, engine, agent, redis):
    router.post(CHAT, CHAT.request(TEXT_4K))
    wait_notes(agent, 2)

    assert 800 < redis.call("TTL", agent.key("in")) <= 900


class AsAdmin:
    """A Redis whose users are those of the file that we ship."""

    def __init__(self, redis):
        self.redis = redis

    def call(self, *words):
        return self.redis.call(*words, user="admin", password="change-me-admin")


def test_all_of_it_is_within_the_rights_of_the_user_router(start_redis, start_router, secret_file,
                                                          engine):
    redis = start_redis(users_acl=REPO / "docker/users.acl", password="change-me-router")
    routers = [start_router([engine], "--redis", redis.url_of("router"), "--redis-password-file",
                            redis.password_file(), "--secret-file", secret_file)
               for _ in range(2)]
    agent = seen_agent(ScriptedAgent(AsAdmin(redis), engine, routers[0]), *routers)

    routers[0].post(CHAT, CHAT.request(TEXT_4K))

    wait_notes(agent, 3)
    wait_until(lambda: routers[1].metrics()["samovar_router_others"] == 1, "the other is heard")
    assert agent.redis.call("TTL", agent.key("in")) > 800
    assert not routers[0].log.find("notes_refused") and not routers[0].log.find("loads_refused")


# --- what is not told ---

def test_what_cannot_be_asked_about_is_said_why(router, engine, agent):
    image = [{"role": "user", "content": [
        {"type": "text", "text": "What is that?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    told_before = len(agent.notes())
    engine.handler = lambda request: (request.body(), request.answer(CHAT.answer()))

    assert ask(router, CHAT, CHAT.request(messages=image))["anchor"] == "media"
    assert ask(router, CHAT, CHAT.request(TEXT_4K, n=2))["anchor"] == "shape"
    assert ask(router, COMPLETIONS,
               COMPLETIONS.request(TEXT_4K, truncate_prompt_tokens=5))["anchor"] == "fields"
    assert ask(router, COMPLETIONS, COMPLETIONS.request([TEXT_4K, "a"]))["anchor"] == "shape"
    assert ask(router, COMPLETIONS, COMPLETIONS.request(TEXT_4K, echo=True))["anchor"] == "shape"
    assert ask(router, COMPLETIONS, COMPLETIONS.request("tea"))["anchor"] == "known"
    assert engine.tokenized == []
    assert len(agent.notes()) == told_before


@pytest.mark.parametrize("call", [RESPONSES, MESSAGES], ids=lambda call: call.name)
def test_other_apis_are_asked_about_where_their_prompts_can_be_rendered(router, engine, agent,
                                                                        call):
    body = call.request(TEXT_4K)
    router.post(call, body)
    wait_outcome(router, "unable")
    assert ask(router, call, call.request("again " + TEXT_4K))["anchor"] == "unable"
    assert engine.rendered == [(call.path + "/render", body)], "asked once"
    assert engine.tokenized == [] and agent.notes() == []


@pytest.mark.parametrize("call", [RESPONSES, MESSAGES], ids=lambda call: call.name)
def test_prompts_that_can_be_rendered_are_told(router, engine, agent, call):
    engine.render_ids = list(range(20))  # as many as these answers' usage says

    router.post(call, call.request(TEXT_4K))

    notes = wait_notes(agent, 3)
    assert [note.kind for note in notes] == [ROUTED, ANCHOR, ANSWERED]
    assert (notes[1].token_count, notes[1].cached_tokens) == (20, 16)
    assert notes[2].token_count == 20 + (4 if call is RESPONSES else 1), "with the answer's"


@pytest.mark.parametrize("fields", [
    {"reasoning_effort": "low"}, {"documents": [{"text": "tea"}]},
    {"tools": [{"type": "function", "function": {"name": "tea"}}], "tool_choice": "none"},
], ids=["effort", "documents", "no_tools"])
def test_what_tokenize_passes_over_is_rendered(router, engine, agent, fields):
    body = CHAT.request(TEXT_4K, **fields)
    engine.render_ids = engine.ids_of(json.loads(body))

    router.post(CHAT, body)

    wait_until(lambda: len(engine.rendered) == 2, "the prompt, and its template's tail")
    assert engine.rendered[0] == (CHAT.path + "/render", body)
    wait_outcome(router, "posted")
    assert engine.tokenized == []


def test_a_wrong_count_is_not_told(router, engine, agent):
    engine.off_by = 1

    router.post(CHAT, CHAT.request(TEXT_4K))

    wait_outcome(router, "mismatch")
    assert agent.notes() == []


def test_without_usage_a_count_is_not_told(router, engine, agent):
    engine.says_usage = False

    router.post(CHAT, CHAT.request(TEXT_4K))

    wait_outcome(router, "unchecked")
    assert agent.notes() == []


@pytest.mark.parametrize("status", [403, 404, 501])
def test_who_has_no_tokenize_is_asked_once(router, engine, agent, status):
    engine.tokenize_reply = (status, b"{}")

    for number in range(3):
        router.post(CHAT, CHAT.request(f"{number}" + TEXT_4K))
        wait_outcome(router, "unable", number + 1)

    assert len(engine.tokenized) == 1
    assert agent.notes() == []


@pytest.mark.parametrize("reply", [
    b"", b"not json", b"{}", b'{"count":3,"tokens":[1,2]}', b'{"count":1,"tokens":["a"]}',
    b'{"tokens":' + b"[" * 300, b'{"count":2,"tokens":[1,99999999999]}',
    b'{"count":4000000,"tokens":[' + b"1," * 3999999 + b"1]}",
], ids=["empty", "text", "nothing", "miscounted", "no_ids", "deep", "large_id", "huge"])
def test_garbage_from_tokenize_tells_nothing(router, engine, agent, reply):
    engine.tokenize_reply = (200, reply)

    answer = router.post(COMPLETIONS, COMPLETIONS.request(TEXT_4K))

    assert answer.status == 200
    wait_until(lambda: anchors(router, "failed") + anchors(router, "long") == 1, "judged")
    assert agent.notes() == []


def test_a_slow_tokenize_holds_up_nobody(router, engine, agent):
    engine.tokenize_gate = threading.Event()

    started = time.monotonic()
    for number in range(10):
        assert router.post(CHAT, CHAT.request(f"{number}" + TEXT_4K)).status == 200
    elapsed_s = time.monotonic() - started

    assert elapsed_s < 3, "each is answered long before its side call"
    wait_until(lambda: len(engine.tokenized) == 4, "no more than four are asked at once")
    assert not router.in_flight()
    engine.tokenize_gate.set()
    wait_outcome(router, "posted", 10)


def test_asks_no_faster_than_it_may(start_telling_router, redis, engine):
    router = start_telling_router([engine], "--anchor-rate-max", 2)
    seen_agent(ScriptedAgent(redis, engine, router), router)

    for number in range(8):
        router.post(COMPLETIONS, COMPLETIONS.request(f"{number}" + TEXT_4K))

    wait_until(lambda: anchors(router, "rate") + anchors(router, "posted") == 8, "all judged")
    assert anchors(router, "rate") >= 3


def test_how_much_must_be_new_is_an_option(start_telling_router, redis, engine):
    router = start_telling_router([engine], "--anchor-bytes-min", 10000)
    agent = seen_agent(ScriptedAgent(redis, engine, router), router)

    assert ask(router, COMPLETIONS, COMPLETIONS.request(TEXT_4K))["anchor"] == "known"
    router.post(COMPLETIONS, COMPLETIONS.request(TEXT_4K * 3))

    wait_notes(agent, 2)
    assert len(engine.tokenized) == 1


def test_an_agent_that_falls_silent_is_told_nothing(router, engine, agent):
    agent.fall_silent()

    wait_until(lambda: ask(router, COMPLETIONS, COMPLETIONS.request(TEXT_4K))["anchor"] ==
               "no_agent", "its silence is seen")


# --- faults ---

def test_an_answer_that_breaks_off_is_not_told(start_telling_router, redis, worker):
    router = start_telling_router([worker])
    agent = ScriptedAgent(redis, worker, router, has_anchors=True)

    def is_told():
        client = router.connect()
        client.post(CHAT, CHAT.request(TEXT_4K, stream=True))
        request = worker.expect()
        request.start_stream()
        request.send_chunk(CHAT.event("In the kitchen. " * 40))
        answer = client.answer()
        answer.read(10)
        request.end_by("rst")
        answer.read_until_cut() if answer.framing == "close" else answer.read_all()
        return agent.notes() != []

    wait_until(is_told, "the prompt is told")
    assert {note.kind for note in agent.notes()} == {ROUTED}


def test_redis_away_is_nothing_to_a_request(router, engine, agent, redis):
    redis.kill()
    for number in range(5):
        assert router.post(CHAT, CHAT.request(f"{number}" + TEXT_4K)).status == 200
    assert router.log.wait("notes_link_down")["why"]
    redis.start()
    agent.appear()

    wait_until(lambda: router.post(CHAT, CHAT.request(TEXT_4K)) and agent.notes(),
               "told again", timeout_s=30)


def test_a_redis_that_is_stopped_is_nothing_to_a_request(router, engine, agent, redis):
    redis.pause()
    started = time.monotonic()
    for number in range(20):
        assert router.post(CHAT, CHAT.request(f"{number}" + TEXT_4K)).status == 200
    elapsed_s = time.monotonic() - started
    redis.resume()

    assert elapsed_s < 2
    wait_until(lambda: router.post(CHAT, CHAT.request(TEXT_4K)) and agent.notes(),
               "told again", timeout_s=30)


def test_early_heads_keep_the_body_until_it_is_asked_about(start_telling_router, redis, engine):
    router = start_telling_router([engine], "--early-head-ms", 20)
    agent = seen_agent(ScriptedAgent(redis, engine, router), router)
    has_head = threading.Event()

    def slowly(request):
        if request.target == "/tokenize":
            engine.serve(request)
            return
        usage = engine.usage_of(json.loads(request.body()))
        request.start_stream()
        has_head.wait(20)
        for event in CHAT.stream(with_usage=True)[:-2] + [CHAT.usage_event(usage), DONE]:
            request.send_chunk(event)
        request.end_stream()

    engine.handler = slowly
    client = router.connect()
    client.post(CHAT, CHAT.request(TEXT_4K, stream=True))
    answer = client.answer()  # its head alone
    has_head.set()
    answer.read_all()

    assert [note.kind for note in wait_notes(agent, 2)][:2] == [ROUTED, ANCHOR]


# --- what nobody may find ---

def test_no_prompt_token_id_salt_or_request_id_is_anywhere(router, engine, agent, redis):
    canary, salt, request_id = "xylophone-quartz-7731", "salt-of-anna-9942", "req-canary-5518"
    ids = [870000 + number for number in range(400)]

    router.post(CHAT, CHAT.request((canary + " ") * 200, cache_salt=salt),
                fields={"X-Request-Id": request_id + "-a"})
    router.post(COMPLETIONS, COMPLETIONS.request(ids, cache_salt=salt),
                fields={"X-Request-Id": request_id + "-b"})
    wait_outcome(router, "posted", 2)
    wait_notes(agent, 5)

    stored = redis.everything()
    metrics = router.admin("/metrics").read_all()
    log = "\n".join(router.log.text).encode()
    assert stored and metrics and log
    for secret in (canary, salt, engine.answer_text[:20], "870123"):
        for place in (stored, metrics, log):
            assert secret.encode() not in place, secret
    packed = b"".join(number.to_bytes(4, "little") for number in ids[5:8])
    assert packed not in stored
    assert request_id.encode() not in stored and request_id.encode() not in metrics


# --- real engines' habits ---

def test_a_simulated_engine_counts_as_its_usage_says(start_telling_router, start_sim, redis):
    """Multi-turn chats with tools: every anchor agrees."""
    sim = start_sim()
    router = start_telling_router([sim])
    agent = seen_agent(ScriptedAgent(redis, sim, router), router)
    tools = [{"type": "function", "function": {"name": "tea", "parameters": {
        "type": "object", "properties": {"cups": {"type": "integer"}}}}}]
    messages = [{"role": "system", "content": TEXT_4K}]

    for turn in range(4):
        messages.append({"role": "user", "content": f"turn {turn} " + "and so on " * 60})
        answer = router.post(CHAT, CHAT.request(messages=messages, tools=tools, max_tokens=60))
        messages.append(json.loads(answer.body)["choices"][0]["message"])

    wait_outcome(router, "posted", 4)
    assert anchors(router, "mismatch") == 0
    told = [note for note in agent.notes() if note.kind == ANCHOR]
    assert all(note.tail_tokens > 0 for note in told)


def test_a_conversation_over_two_routers_is_exact_from_its_second_turn(
        start_telling_router, start_agent, start_sim, redis):
    """Simulated engines, real agents: what one router told, the other one knows."""
    sims = [start_sim("--kv-events", "tcp://127.0.0.1:*", "--kv-replay", "tcp://127.0.0.1:*")
            for _ in range(2)]
    agents = [start_agent(sim, redis, kv_events=sim.kv_events, kv_replay=sim.kv_replay)
              for sim in sims]
    routers = [start_telling_router(sims) for _ in range(2)]
    for agent in agents:
        agent.wait_ready()
    for router in routers:
        wait_until(lambda router=router:
                   router.metrics()["samovar_router_map_exact_workers"] == 2, "both are exact")
        # Before that no anchor can be named: the agents' probes tell them.
        wait_until(lambda router=router: all(
            row["agent"] and row["agent"]["block_tokens"] == 16
            for row in router.admin("/residency").json()["workers"]), "their blocks are known")
    messages = [{"role": "system", "content": TEXT_4K}]

    for turn in range(6):
        messages.append({"role": "user", "content": f"turn {turn} " + "and so on " * 60})
        router = routers[turn % 2]
        answer = router.post(CHAT, CHAT.request(messages=messages, max_tokens=100))
        messages.append(json.loads(answer.body)["choices"][0]["message"])
        line = router.request_line(answer)
        if turn > 0:
            assert line["rung"] == "exact", line
            assert abs(line["predicted_cached_tokens"] - line["cached_tokens"]) <= 16, line

        wait_until(lambda turn=turn: sum(agent.metric_sum("samovar_agent_joins_total")
                                         for agent in agents) == 2 * (turn + 1),
                   "prompt and answer are joined")
        records = sum(agent.metric_sum("samovar_agent_text_blocks_known") for agent in agents)
        for each in routers:
            wait_until(lambda each=each:
                       each.metrics()["samovar_router_map_records"] == records,
                       lambda each=each: f"{records} records: "
                       f"{each.metrics()['samovar_router_map_records']}")


TOOLS = [{"type": "function", "function": {"name": f"tea_{i}", "description": TEXT_4K[:200],
                                           "parameters": {"type": "object", "properties": {
                                               "cups": {"type": "integer"}}}}} for i in range(4)]
DAY_S = 4


@pytest.mark.parametrize("habit", ["plain", "drop_reasoning", "tools_late", "dated"])
def test_no_habit_of_a_template_leaves_a_lasting_phantom(start_telling_router, start_agent,
                                                         start_sim, redis, habit):
    """Prompts with equal text that do not become equal tokens: whatever was promised wrongly once
    is not promised again."""
    sim = start_sim("--kv-events", "tcp://127.0.0.1:*", "--kv-replay", "tcp://127.0.0.1:*",
                    "--template", habit, "--day-s", DAY_S)
    agent = start_agent(sim, redis, kv_events=sim.kv_events, kv_replay=sim.kv_replay).wait_ready()
    router = start_telling_router([sim])
    router.wait_believed(1, 16)

    def told(what):
        return sum(value for key, value in agent.metrics().items()
                   if "notes_total" in key and f'"{what}"' in key)

    messages = [{"role": "system", "content": TEXT_4K}]
    lines, began = [], time.monotonic()

    for turn in range(10):
        messages.append({"role": "user", "content": f"turn {turn} " + "and so on " * 30})
        answer = router.post(CHAT, CHAT.request(messages=messages, tools=TOOLS, max_tokens=60,
                                                tool_choice="required" if turn % 3 == 2 else "auto"))
        message = json.loads(answer.body)["choices"][0]["message"]
        messages += [message, *({"role": "tool", "tool_call_id": call["id"], "content": "Two cups."}
                                for call in message.get("tool_calls") or ())]
        lines.append(router.request_line(answer))
        wait_until(lambda: told("answered") == len(lines), "the agent was told")
        wait_until(lambda: agent.metric_sum("samovar_agent_joins_total") ==
                   told("anchor") + told("answered"), "all of it is joined")
        wait_until(lambda: agent.metric_sum("samovar_agent_report_records") ==
                   router.metrics()["samovar_router_map_records"], "and the router knows")
        if habit == "tools_late":
            wait_until(lambda: any("tool_place_learned" in line for line in router.log.text),
                       "the place of its tools is known")

    # What the map says, once it has been wrong where it may; the guess adds what was sent a moment
    # ago.
    wrong = [line for line in lines[3:]
             if abs(line.get("claimed_tokens", 0) - line["cached_tokens"]) > 16]
    days = (time.monotonic() - began) / DAY_S + 1 if habit == "dated" else 0
    assert len(wrong) <= days, [(line.get("claimed_tokens"), line["cached_tokens"])
                                for line in lines]
    assert all(line["rung"] == "exact" for line in lines[3:])
    assert lines[-1]["cached_tokens"] > 1000
