# SPDX-License-Identifier: Apache-2.0
"""samovar, the operator's command: what it prints, where, and with which exit code."""

import json
import re
import shutil
import subprocess

import pytest

from peers.openai_api import CHAT, MODEL
from peers.process import SANITIZER_MARKS, program
from peers.wire import WAIT_S

FINE, FAILED, USAGE, CONFIG = 0, 1, 2, 3
NOWHERE = "http://127.0.0.1:9"  # nobody listens there


def run(*words, stdin="", env=None):
    """Runs it; what fails says so on standard error, and nothing else is on standard output."""
    words = [str(word) for word in words]
    shown = subprocess.run([program("samovar"), *words], input=stdin, capture_output=True,
                           text=True, timeout=WAIT_S, env=env)
    assert not any(mark in shown.stderr for mark in SANITIZER_MARKS), shown.stderr
    assert shown.returncode == FINE or shown.stderr or "-q" in words, shown
    assert shown.returncode != FINE or all(": warning: " in line
                                           for line in shown.stderr.splitlines()), shown
    assert shown.returncode == FINE or not shown.stdout, shown
    return shown


def refused(code, *words, **how):
    shown = run(*words, **how)
    assert shown.returncode == code, shown
    return shown.stderr


def printed(*words, **how):
    shown = run(*words, **how)
    assert shown.returncode == FINE, shown
    return shown.stdout


# --- the command itself ---

def test_without_a_command_it_names_them_all():
    text = refused(USAGE)
    for command in ("check", "doctor", "explain", "man", "show", "version"):
        assert re.search(rf"^  {command} ", text, re.MULTILINE), text
    assert printed("--help") == printed("-h") == text


@pytest.mark.parametrize("command", ["check", "doctor", "explain", "man", "show"])
def test_every_command_says_its_usage_and_exit_codes(command):
    text = printed(command, "--help")
    assert text.startswith(f"Usage: samovar {command}")
    assert "Exit codes:" in text


@pytest.mark.parametrize("typed, meant", [
    ("chekc", "check"), ("expalin", "explain"), ("Show", "show"), ("versions", "version"),
    ("exp", "explain"),
])
def test_a_command_misspelt_is_told_with_what_was_meant(typed, meant):
    text = refused(USAGE, typed)
    assert text == f'samovar: there is no command "{typed}"; did you mean {meant}?\n'


def test_a_command_far_from_all_is_sent_to_the_help():
    text = refused(USAGE, "frobnicate")
    assert "did you mean" not in text
    assert "samovar --help" in text


def test_the_version_is_the_routers():
    router = subprocess.run([program("samovar-router"), "--version"], capture_output=True,
                            text=True, timeout=WAIT_S)
    assert printed("version") == printed("--version")
    assert printed("version").split()[-1] in router.stdout
    assert "no argument" in refused(USAGE, "version", "2")


# --- man ---

def test_the_man_page_is_roff_without_a_warning():
    page = printed("man")
    assert page.startswith(".TH SAMOVAR")
    assert "\\-\\-worker\\-urls" in page and "SIGHUP" in page
    if shutil.which("groff"):
        judged = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, capture_output=True,
                                text=True, timeout=WAIT_S)
        assert (judged.returncode, judged.stderr) == (0, "")
    assert "no argument" in refused(USAGE, "man", "2")


# --- check ---

def test_a_fine_configuration_is_ok(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("port: 8080\nworker-urls:\n  - http://a:1\n  - http://no-such-host:2\n")
    assert printed("check", config) == "ok\n"
    assert printed("check", "--config", config, "--port", 9090) == "ok\n"
    assert printed("check", "--worker-urls", "http://a:1", env={}) == "ok\n"


def test_values_in_force_are_printed_with_their_origins(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("port: 8080\nworker-urls:\n  - http://a:1\nlog-level: warn\n")

    text = printed("check", config, "--print-effective", "--port", 9090,
                   env={"SAMOVAR_CONNECT_MS": "77"})

    lines = {line.split(":")[0]: line for line in text.splitlines() if ":" in line}
    assert "9090" in lines["port"] and "--port" in lines["port"]
    assert "77" in lines["connect-ms"] and "SAMOVAR_CONNECT_MS" in lines["connect-ms"]
    assert "warn" in lines["log-level"] and "router.yaml:4" in lines["log-level"]
    assert "default" in lines["policy"]


def test_a_mistake_in_a_file_is_shown_in_its_line(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("worker-urls: http://a:1\npolcy: ttft\ndrain-ms: 5sec # soon\n"
                      "worker-urls: [ftp://b]\n", encoding="utf-8")

    text = refused(CONFIG, "check", config)

    assert text == f"""\
{config}:2:1: there is no option of this name
    2 | polcy: ttft
      | ^^^^^
      = did you mean policy?
{config}:3:11: drain-ms: "5sec" has no unit that is known
    3 | drain-ms: 5sec # soon
      |           ^^^^
      = did you mean 5s? Else write 0ms to 24h, as in 250ms, 10s, 5m or 1h; a bare number is \
milliseconds; the default is 60s
{config}:4:1: worker-urls is given twice in this file, first in line 1
    4 | worker-urls: [ftp://b]
      | ^^^^^^^^^^^
      = keep one of the two
"""


def test_what_is_doubtful_is_said_and_fails_only_where_strict():
    words = ["check", "--worker-urls", "http://a:1", "--worker-idle-ms", "10s"]
    shown = run(*words)
    assert shown.returncode == FINE and shown.stdout == "ok\n"
    assert shown.stderr.startswith("--worker-idle-ms: warning: worker-idle-ms: 10s: engines close")
    assert refused(FAILED, *words, "--strict") == shown.stderr
    assert printed("check", "--strict", "--worker-urls", "http://a:1") == "ok\n"


def test_findings_as_json_are_for_programs(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text('prot: 1\nlog-format: "x\\"y"\n')
    shown = subprocess.run([program("samovar"), "check", config, "--json"], capture_output=True,
                           text=True, timeout=WAIT_S)
    assert (shown.returncode, shown.stderr) == (CONFIG, "")
    found = json.loads(shown.stdout)
    assert found["ok"] is False and found["doubts"] == []
    assert found["errors"][0] == {"where": f"{config}:1:1", "advice": "did you mean port?",
                                  "what": "there is no option of this name"}
    assert found["errors"][1]["what"] == '"x"y" is not known'

    found = json.loads(printed("check", "--json", "--print-effective", "--worker-urls",
                               "http://a:1", "--seed", 1))
    assert found["ok"] is True and found["errors"] == []
    assert found["doubts"][0]["option"] == "seed" and found["doubts"][0]["origin"] == "--seed"
    assert found["options"]["port"] == {"value": "8080", "origin": "default"}
    assert found["options"]["worker-urls"]["value"] == '["http://a:1"]'


@pytest.mark.parametrize("words, code", [
    (["--worker-urls", "http://a:1"], FINE), (["--worker-urls", "http://a:1", "--port", "x"], USAGE),
    (["/nowhere.yaml"], CONFIG),
    (["--worker-urls", "http://a:1", "--seed", "1", "--strict"], FAILED),
])
def test_a_quiet_check_only_has_an_exit_code(words, code):
    shown = run("check", "-q", *words)
    assert (shown.returncode, shown.stdout, shown.stderr) == (code, "", "")


def test_the_file_may_stand_behind_switches_of_check(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("worker-urls: http://a:1\n")
    assert printed("check", "--strict", config, "--port", 9090) == "ok\n"


def test_what_is_printed_is_a_file_that_means_the_same(tmp_path):
    first = printed("check", "--print-effective", "--worker-urls", "http://a:1", "--port", 9090)
    again = tmp_path / "again.yaml"
    again.write_text(first)
    second = printed("check", again, "--print-effective")

    def values(text):
        return [re.sub(r"\s*#.*", "", line) for line in text.splitlines()]

    assert values(first) == values(second)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("prot: 1\nport: many\nworker-urls:\n  - ftp://a\n")
    text = refused(CONFIG, "check", config)
    assert "router.yaml:1:1: there is no option of this name\n    1 | prot" in text
    assert "router.yaml:2" in text
    assert "ftp://a" in text and "only http:// and dns:// are known" in text


@pytest.mark.parametrize("words, code, said", [
    (["--prot", "1"], USAGE, "did you mean --port?"),
    (["--policy", "tfft", "--worker-urls", "http://a:1"], USAGE, "did you mean ttft?"),
    (["/nonexistent.yaml"], CONFIG, "/nonexistent.yaml: cannot be opened"),
    (["--worker-urls", "http://a:1:2"], USAGE, "http://a:1:2"),
])
def test_a_wrong_value_is_an_error(words, code, said):
    assert said in refused(code, "check", *words)


@pytest.mark.parametrize("url", ["http://me:CANARY@a:1", "http://me:CANARY@a:1/v1", "CANARY@a:1",
                                 "https://me:CANARY@a:1", "http://a:1/?key=@CANARY"])
def test_a_password_in_a_url_is_refused_and_not_shown(url):
    for text in (refused(USAGE, "check", "--worker-urls", url),
                 refused(CONFIG, "check", env={"SAMOVAR_WORKER_URLS": url})):
        assert "user name or password" in text
        assert "CANARY" not in text


def test_a_wrong_environment_is_a_wrong_configuration():
    text = refused(CONFIG, "check", "--worker-urls", "http://a:1", env={"SAMOVAR_PORT": "x"})
    assert "SAMOVAR_PORT" in text


def test_what_check_refuses_the_router_refuses_with_the_same_code(tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("port: many\n")
    for words in (["--config", config], ["--prot", "1"]):
        router = subprocess.run([program("samovar-router"), *map(str, words)],
                                capture_output=True, text=True, timeout=WAIT_S)
        assert run("check", *words).returncode == router.returncode


# --- explain ---

def chat(*contents):
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}
                                                    for content in contents]})


BLOCK = re.compile(r"^\s+\d+  ([0-9a-f]{16})\s+(\d+) \.\. (\d+)(  \(end\))?$", re.MULTILINE)


def test_a_prompt_is_shown_in_its_blocks():
    text = printed("explain", stdin=chat("a" * 600))

    assert text.startswith(f"-: chat, model {MODEL}, root ")
    rows = BLOCK.findall(text)
    assert [int(row[1]) for row in rows] == [0] + [int(row[2]) for row in rows[:-1]]
    assert [int(row[2]) for row in rows[:2]] == [256, 512]
    assert len({row[0] for row in rows}) == len(rows)


def test_prompts_show_what_they_share(tmp_path):
    for name, last in (("one", "x"), ("two", "y")):
        (tmp_path / name).write_text(chat("a" * 600, last))

    text = printed("explain", tmp_path / "one", tmp_path / "two")

    one, two = text.split(f"{tmp_path / 'two'}: chat", 1)
    names = [[row[0] for row in BLOCK.findall(part)] for part in (one, two)]
    shared = sum(1 for a, b in zip(*names) if a == b)
    assert 0 < shared < len(names[0])
    assert f"shares the first {shared} blocks" in two


def test_other_spelling_of_the_same_prompt_shares_all_of_it(tmp_path):
    (tmp_path / "one").write_text(chat("aé" * 300))
    (tmp_path / "two").write_text(json.dumps(json.loads(chat("aé" * 300)), ensure_ascii=False,
                                             indent=4, sort_keys=True))
    text = printed("explain", tmp_path / "one", tmp_path / "two")
    assert f"shares the first {len(BLOCK.findall(text)) // 2} blocks" in text


def ranks(text):
    return re.findall(r"^  \d+ +(\S+) +(?:exact|guess|affinity|load) ", text, re.MULTILINE)


def test_workers_are_ranked_as_a_router_would():
    body = chat("a" * 6000)
    text = printed("explain", "--worker", "cold", "--worker", "warm,matched=20", stdin=body)
    assert ranks(text) == ["warm", "cold"]
    busy = printed("explain", "--worker", "cold", "--worker", "warm,matched=20,queued=90000",
                   stdin=body)
    assert ranks(busy) == ["cold", "warm"]
    assert "policy ttft" in text
    assert "policy least_load" in printed("explain", "--policy", "least_load", "--worker", "a",
                                          stdin=body)


def test_what_lies_in_other_tiers_is_weighed_as_a_router_would():
    body = chat("a" * 60000)
    disk = "disk,matched=200,claimed=200,ssd=150"
    text = printed("explain", "--worker", "cold", "--worker", disk, stdin=body)
    assert ranks(text) == ["disk", "cold"]
    assert re.search(r"^  1 +disk +exact +\d{4,} +0 +\d{4,} +0\.0 +[1-9]", text, re.MULTILINE), text
    slow = printed("explain", "--worker", "cold", "--worker",
                   f"{disk},ssd-queue=9000,queued=9000,cpu-rate=2e9", stdin=body)
    assert ranks(slow) == ["cold", "disk"]
    assert re.search(r"^  2 +disk( +\S+){5} +0\.0 ", slow, re.MULTILINE), "nothing is moved"


def test_a_session_has_its_worker_where_nobody_holds_the_prompt():
    workers = [word for name in "abc" for word in ("--worker", f"http://{name}:8000")]
    homes = {}
    for session in "stuvwxyz":
        text = printed("explain", "--session", session, *workers, stdin=chat("hello"))
        assert printed("explain", "--session", session, *workers, stdin=chat("bye")).count(
            " affinity ") == text.count(" affinity ") == 1
        homes[session] = ranks(text)[0]
        assert re.search(rf"^  1 +{homes[session]} +affinity ", text, re.MULTILINE)
    assert len(set(homes.values())) > 1

    held = printed("explain", "--session", "s", *workers, "--worker", "http://d:1,matched=20",
                   stdin=chat("a" * 6000))
    assert ranks(held)[0] == "http://d:1"
    assert "affinity" not in held


def test_a_completions_body_is_known_by_its_prompt():
    text = printed("explain", "-", stdin=json.dumps({"model": MODEL, "prompt": "a" * 300}))
    assert text.startswith("-: completions, ")


TEXT = "a" * 300


@pytest.mark.parametrize("api, body", [
    ("responses", {"input": TEXT}),
    ("messages", {"system": TEXT, "messages": [{"role": "user", "content": "x"}]}),
    ("messages", {"tools": [{"name": "f", "input_schema": {}}],
                  "messages": [{"role": "user", "content": "x"}]}),
])
def test_a_body_of_another_api_is_known_by_its_fields(api, body):
    assert printed("explain", stdin=json.dumps(body)).startswith(f"-: {api}, ")


def test_the_api_of_a_file_can_be_said_and_a_conversation_is_the_same_in_all(tmp_path):
    chat_body = chat(TEXT)
    (tmp_path / "chat").write_text(chat_body)
    (tmp_path / "messages").write_text(chat_body)
    (tmp_path / "responses").write_text(json.dumps({"model": MODEL, "input": TEXT}))

    text = printed("explain", tmp_path / "chat", "--api", "messages", tmp_path / "messages",
                   "--api=responses", tmp_path / "responses")

    assert [row for row in re.findall(r": (\w+), model", text)] == ["chat", "messages", "responses"]
    assert text.count("shares the first 2 blocks") == 3


def test_where_tools_are_printed_decides_what_turns_share(tmp_path):
    body = json.loads(chat("a" * 600))
    body["tools"] = [{"type": "function", "function": {"name": "f", "description": TEXT}}]
    (tmp_path / "turn").write_text(json.dumps(body))
    body["messages"] += [{"role": "assistant", "content": TEXT}, {"role": "user", "content": TEXT}]
    (tmp_path / "next").write_text(json.dumps(body))

    def shared(*words):
        text = printed("explain", *words, tmp_path / "turn", tmp_path / "next")
        return int(re.search(r"shares the first (\d+) blocks", text)[1])

    assert shared() == shared("--tool-place", "first") > shared("--tool-place=behind_last_user")
    assert shared("--tool-place", "behind_last_user") > shared("--tool-place=before_last_user") == 0


@pytest.mark.parametrize("stdin, said", [
    ("", "JSON"), ("{", "at byte"), ('{"model":"m"}', "messages"), ("[]", "object"),
])
def test_a_body_that_means_nothing_fails_and_says_why(stdin, said):
    text = refused(FAILED, "explain", stdin=stdin)
    assert text.startswith("samovar explain: -: ")
    assert said in text


@pytest.mark.parametrize("words, said", [
    (["--polcy", "x"], '"--polcy" is not understood'),
    (["--policy", "tfft"], 'no policy "tfft"; write one of ttft'),
    (["--worker", ""], "needs a name"),
    (["--worker", "w,matchd=1"], '"matchd=1" is not understood'),
    (["--worker", "w,matched=-1"], "is not understood"),
    (["--worker", "w,rate=0"], "is not understood"),
    (["--worker", "w,matched=x"], "is not understood"),
    (["--worker"], "is not understood"),
    (["--tool-place", "late"],
     "--tool-place late: write first, before_last_user or behind_last_user"),
    (["--api", "embeddings"], "--api embeddings: write chat, completions, responses or messages"),
])
def test_wrong_words_for_explain_are_named(words, said):
    assert said in refused(USAGE, "explain", *words, stdin=chat("x"))


def test_a_file_that_is_not_there_is_named():
    assert "/nonexistent: No such file" in refused(FAILED, "explain", "/nonexistent")


def test_a_claimed_prefix_is_exact_and_what_is_being_made_waits_for_its_maker(tmp_path):
    body = tmp_path / "body"
    body.write_bytes(CHAT.request("All about samovars, from the beginning. " * 200))
    text = printed("explain", body, "--worker", "http://a:1,claimed=10,matched=10",
                   "--worker", "http://b:1,matched=10,pending=10", "--worker", "http://c:1")
    head, *lines = text[text.index("RANK"):].splitlines()
    rows = {row["WORKER"]: row for row in (dict(zip(head.split(), line.split())) for line in lines)}
    a, b, c = (rows[f"http://{name}:1"] for name in "abc")

    assert [row["RUNG"] for row in (a, b, c)] == ["exact", "guess", "load"]
    assert a["MATCHED"] == b["MATCHED"]
    assert float(a["QUEUE"]) == 0 < float(b["QUEUE"])
    assert a["RANK"] == "1"


# --- show ---

def admin_url(router):
    return "http://%s:%d" % router.admin_address


def test_the_workers_of_a_running_router_are_a_table(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    client.answer().read_all()
    router.wait_idle()

    text = printed("show", "workers", "--admin", admin_url(router))

    head, row = text.splitlines()
    cells = dict(zip(head.split(), row.split()))
    assert cells["WORKER"] == worker.url
    assert cells["STATE"] == "up"
    assert cells["IN_FLIGHT"] == "0"
    assert cells["CHOSEN"] == "1"
    assert cells["FAILURES"] == "0"


def test_the_answer_can_be_had_as_it_came(router):
    text = printed("show", "workers", f"--admin={admin_url(router)}", "--json")
    assert [row["url"] for row in json.loads(text)["workers"]] == \
        [row["url"] for row in router.workers()]


def test_what_tiers_cost_is_shown_of_workers_that_have_them(worker):
    tiers = {"bytes_per_token": 131072, "cpu_start_us": 4500, "cpu_bytes_per_s": 9_500_000_000,
             "ssd_start_us": 0, "ssd_bytes_per_s": 0, "prefill_tokens_per_s": 12_340}
    agents = {"http://a:1": tiers, "http://b:1": {"bytes_per_token": 0}, "http://c:1": None}
    command = subprocess.Popen([program("samovar"), "show", "residency", "--admin", worker.url],
                               stdout=subprocess.PIPE, text=True)

    worker.expect().answer(json.dumps({"workers": [{"url": url, "agent": agent}
                                                   for url, agent in agents.items()]}).encode())
    text, _ = command.communicate(timeout=WAIT_S)

    costs = text[text.index("WORKER", 1):text.index("map:")]
    assert command.returncode == FINE
    assert [row.split() for row in costs.splitlines()] == [
        ["WORKER", "BYTES/TOKEN", "CPU_MS", "CPU_MB/S", "SSD_MS", "SSD_MB/S", "TOKENS/MS"],
        ["http://a:1", "131072", "4.5", "9500.0", "-", "-", "12.3"]], text


def test_nobody_there_is_a_failure_that_says_where():
    text = refused(FAILED, "show", "workers", "--admin", NOWHERE)
    assert NOWHERE in text and "refused" in text and "admin port" in text


def test_another_port_of_the_router_is_told_from_its_admin_port(router):
    text = refused(FAILED, "show", "workers", "--admin", router.url)
    assert "answered 404" in text and "admin port" in text


@pytest.mark.parametrize("words, said", [
    ([], "Usage:"), (["wrkers"], '"wrkers" is not understood'),
    (["workers", "--admin", "ftp://x"], "only http:// and dns:// are known"),
    (["workers", "--admin"], '"--admin" is not understood'),
    (["workers", "workers"], '"workers" is not understood'),
])
def test_wrong_words_for_show_are_named(words, said):
    assert said in refused(USAGE, "show", *words)
