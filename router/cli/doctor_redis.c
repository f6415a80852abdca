/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cli/doctor_parts.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/private_file.h"

/*
 * DESIGN
 *
 * What a user may do is found by doing it, in ways that change nothing: reading what is not there,
 * appending under an id that no stream takes (which is judged after the user is). So it is found
 * for whatever rules there are, and without a right to read them.
 */

enum { WORD_COUNT_MAX = 8, CONNECT_MS = 3000, COMMAND_MS = 3000, PENDING_MAX = 16 };

struct doctor_redis {
    struct redis_link *link;
    bool is_decided; /* READY or AWAY, for the first time */
    bool is_closed;
    int error; /* of connecting */
    char why[256];
};

/* A command under way, and where its reply goes. */
struct question {
    bool is_done;
    int error;
    void (*take)(void *ctx, const struct redis_reply *reply); /* NULL: whatever it is */
    void *ctx;
};

static void on_ready(void *ctx)
{
    struct doctor_redis *redis = ctx;

    redis->is_decided = true;
}

static void on_away(void *ctx, int error, const char *why)
{
    struct doctor_redis *redis = ctx;

    redis->is_decided = true;
    redis->error = error;
    snprintf(redis->why, sizeof redis->why, "%s", why);
}

static void on_done(void *ctx, int error, const struct redis_reply *reply)
{
    struct question *question = ctx;

    question->is_done = true;
    question->error = error;
    if (error == 0 && question->take != NULL)
        question->take(question->ctx, reply);
}

static void wait_until(struct doctor *doctor, const bool *is_true)
{
    while (!*is_true) /* the link's own deadlines see to it */
        uv_run(&doctor->io->loop, UV_RUN_ONCE);
}

/* Words parted by single spaces. Returns as redis_done_fn's error. */
static int ask(struct doctor *doctor, const char *line,
               void (*take)(void *ctx, const struct redis_reply *reply), void *ctx)
{
    struct question question = {.take = take, .ctx = ctx};
    struct slice words[WORD_COUNT_MAX], rest = slice_of_string(line);
    size_t count = 0;
    int status;

    while (rest.len > 0) {
        const char *space = memchr(rest.ptr, ' ', rest.len);
        const size_t len = space != NULL ? (size_t)(space - rest.ptr) : rest.len;

        assert(count < WORD_COUNT_MAX);
        words[count++] = slice_of(rest.ptr, len);
        rest = slice_skip(rest, len < rest.len ? len + 1 : len);
    }
    status = redis_link_send(doctor->redis->link, words, count, on_done, &question);
    if (status < 0)
        return status;
    wait_until(doctor, &question.is_done);
    return question.error;
}

/* ---- Redis ---- */

static const char *advice_for(int error)
{
    switch (error) {
    case -EACCES:
        return "see user in redis, and redis-password-file";
    case -EBUSY:
        return "it is still loading; it will serve when that is done";
    case -ECONNREFUSED:
    case -ENOENT:
        return "is it running there?";
    case -EHOSTUNREACH:
        return "is the name right?";
    case -ETIMEDOUT:
        return "is it overloaded, or behind a firewall?";
    default:
        return "is that a Redis?";
    }
}

static int open_link(struct doctor *doctor, const struct redis_url *url, const char *password)
{
    const struct redis_link_config config = {
        .url = *url,
        .password = password,
        .name = "samovar-doctor",
        .connect_ms = CONNECT_MS,
        .command_ms = COMMAND_MS,
        .back_off_ms = 60000, /* one try */
        .back_off_ms_max = 60000,
        .pending_max = PENDING_MAX,
    };

    doctor->redis = calloc(1, sizeof *doctor->redis);
    if (doctor->redis == NULL)
        return -ENOMEM;
    return redis_link_open(&doctor->io->loop, config,
                           (struct redis_link_callbacks){on_ready, on_away}, doctor->redis,
                           &doctor->redis->link);
}

/* False: it was said why not. */
static bool connect_to_redis(struct doctor *doctor)
{
    const struct router_options *options = doctor->options;
    struct private_file password = {.len = 0};
    char why[PRIVATE_FILE_WHY_BYTES], shown[REDIS_URL_SHOWN_BYTES];
    struct redis_url url;
    int status;

    if (redis_url_parse(slice_of_string(options->redis), &url, why) < 0) {
        doctor_say(doctor, DOCTOR_BAD, "%s", why);
        return false;
    }
    if (private_file_read_line(&password, "redis-password-file", options->redis_password_file,
                               why) < 0) {
        doctor_say(doctor, DOCTOR_BAD, "%s", why);
        return false;
    }
    redis_url_text(&url, shown);
    status = open_link(doctor, &url, password.len > 0 ? password.bytes : NULL);
    private_file_release(&password);
    if (status < 0) {
        doctor_say(doctor, DOCTOR_BAD, "%s cannot be tried: %s", shown, strerror(-status));
        return false;
    }
    wait_until(doctor, &doctor->redis->is_decided);
    if (doctor->redis->error == 0)
        return true;
    doctor_say(doctor, DOCTOR_BAD, "%s does not serve us: %s: %s", shown, doctor->redis->why,
               advice_for(doctor->redis->error));
    return false;
}

static void say_speed(struct doctor *doctor)
{
    const uint64_t begin_ns = uv_hrtime();
    const int error = ask(doctor, "PING", NULL, NULL);
    const double ms = (double)(uv_hrtime() - begin_ns) / 1e6;

    if (error < 0)
        doctor_say(doctor, DOCTOR_BAD, "%s does not answer a PING: %s", doctor->options->redis,
                   strerror(-error));
    else
        doctor_say(doctor, ms < 100 ? DOCTOR_FINE : DOCTOR_DOUBT, "%s answers in %.1f ms%s",
                   doctor->options->redis, ms,
                   ms < 100 ? "" : ": what routers know is late by as much: move it nearer");
}

/* No worker is called this. */
#define NOBODY "smv:{doctor}"

static const char *const needed[] = {
    "GET " NOBODY ":0-1:p:0",
    "MGET " NOBODY ":lease " NOBODY ":lease",
    "HGETALL " NOBODY ":meta",
    "XREVRANGE " NOBODY ":0-1:out + - COUNT 1",
    "XRANGE " NOBODY ":0-1:out - + COUNT 1",
    "XREAD COUNT 1 STREAMS " NOBODY ":0-1:out 0",
    "SMEMBERS smv:0000000000000000:workers",
    "XADD " NOBODY ":in 0-0 b x", /* an id that is refused: nothing is added */
    "XADD " RESIDENCY_KEY_ROUTERS " 0-0 b x",
};

/* What a router never asks, and whoever has its password could. */
static const char *const excessive[] = {
    "CONFIG GET maxmemory-policy",
    "EVAL return(1) 0",
    "SCAN 0 COUNT 1",
    "SET " NOBODY ":lease x PX 1",
};

static const char *word_of(const char *line, char word[16])
{
    snprintf(word, 16, "%.*s", (int)strcspn(line, " "), line);
    return word;
}

/* False: what is left has no sense. */
static bool judge_needed(struct doctor *doctor, const char *line)
{
    char word[16];

    switch (ask(doctor, line, NULL, NULL)) {
    case -EACCES:
        doctor_say(doctor, DOCTOR_BAD,
                   "the user of redis may not do \"%s\": give it what docker/users.acl gives to "
                   "router",
                   line);
        return true;
    case -EROFS:
        doctor_say(doctor, DOCTOR_BAD,
                   "redis is a replica that cannot be written: name its master");
        return false;
    case -EXDEV:
        doctor_say(doctor, DOCTOR_BAD,
                   "redis is a cluster, which is not supported yet: name one without it");
        return false;
    case -ENOSPC:
        doctor_say(doctor, DOCTOR_BAD, "redis is full: raise its maxmemory");
        return false;
    case -ETIMEDOUT:
    case -ECONNRESET:
    case -ENOTCONN:
        doctor_say(doctor, DOCTOR_BAD, "redis was lost at %s", word_of(line, word));
        return false;
    default:
        return true; /* done, or refused for what it was */
    }
}

static void say_rights(struct doctor *doctor)
{
    const uint32_t bad_count = doctor->bad_count;
    char words[128] = "", word[16];
    size_t len = 0;

    for (size_t i = 0; i < array_count(needed); i++) {
        if (!judge_needed(doctor, needed[i]))
            return;
    }
    if (doctor->bad_count == bad_count)
        doctor_say(doctor, DOCTOR_FINE, "the user of redis may do all that a router must");
    for (size_t i = 0; i < array_count(excessive); i++) {
        if (ask(doctor, excessive[i], NULL, NULL) == 0)
            len += (size_t)snprintf(words + len, sizeof words - len, "%s%s", len > 0 ? ", " : "",
                                    word_of(excessive[i], word));
    }
    if (len > 0)
        doctor_say(doctor, DOCTOR_DOUBT,
                   "the user of redis may do more than a router must (%s): give routers a user of "
                   "their own, as docker/users.acl does",
                   words);
}

void doctor_examine_redis(struct doctor *doctor)
{
    if (doctor->options->redis[0] == '\0') {
        doctor_say(doctor, DOCTOR_FINE,
                   "no redis is configured: a router alone guesses what its workers hold");
        return;
    }
    if (!connect_to_redis(doctor)) {
        doctor_close_redis(doctor);
        return;
    }
    say_speed(doctor);
    say_rights(doctor);
}

static void on_closed(void *ctx)
{
    struct doctor_redis *redis = ctx;

    redis->is_closed = true;
}

void doctor_close_redis(struct doctor *doctor)
{
    struct doctor_redis *redis = doctor->redis;

    if (redis == NULL)
        return;
    if (redis->link != NULL) {
        redis_link_close(&redis->link, on_closed, redis);
        wait_until(doctor, &redis->is_closed);
    }
    free(redis);
    doctor->redis = NULL;
}

/* ---- agents ---- */

static void take_name(void *ctx, const struct redis_reply *reply)
{
    struct doctor *doctor = ctx;
    char name[RESIDENCY_WORKER_NAME_BYTES_MAX + 1];

    for (size_t i = 0; i < redis_reply_count(reply); i++) {
        const struct slice text = redis_reply_text(redis_reply_at(reply, i));

        if (text.len == 0 || text.len >= sizeof name)
            continue;
        memcpy(name, text.ptr, text.len);
        name[text.len] = '\0';
        (void)doctor_add_worker(doctor, name);
    }
}

struct heard { /* of one agent */
    bool has_lease, is_lease_read;
    struct residency_lease lease;
    bool is_meta_read;
    struct residency_meta meta;
};

static void take_lease(void *ctx, const struct redis_reply *reply)
{
    struct heard *heard = ctx;

    heard->has_lease = redis_reply_kind(reply) == REDIS_REPLY_TEXT;
    heard->is_lease_read =
        heard->has_lease && residency_lease_read(redis_reply_text(reply), &heard->lease) == 0;
}

static void take_meta(void *ctx, const struct redis_reply *reply)
{
    struct heard *heard = ctx;
    int status = 0;

    for (size_t i = 0; i + 1 < redis_reply_count(reply) && status == 0; i += 2)
        status = residency_meta_read_field(&heard->meta, redis_reply_text(redis_reply_at(reply, i)),
                                           redis_reply_text(redis_reply_at(reply, i + 1)));
    heard->is_meta_read = status == 0 && residency_meta_check(&heard->meta) == 0;
}

static void hear(struct doctor *doctor, const struct doctor_worker *worker, struct heard *heard)
{
    char key[RESIDENCY_KEY_BYTES_MAX], line[RESIDENCY_KEY_BYTES_MAX + 16];

    *heard = (struct heard){.has_lease = false};
    residency_key(key, worker->name, RESIDENCY_KEY_LEASE);
    snprintf(line, sizeof line, "GET %s", key);
    (void)ask(doctor, line, take_lease, heard); /* refused: as if there were none */
    residency_key(key, worker->name, RESIDENCY_KEY_META);
    snprintf(line, sizeof line, "HGETALL %s", key);
    (void)ask(doctor, line, take_meta, heard);
}

/* An agent that may be believed, and what it does not know. */
static void say_known(struct doctor *doctor, const struct doctor_worker *worker,
                      const struct heard *heard)
{
    const struct residency_meta *meta = &heard->meta;

    if (meta->epoch != heard->lease.life.epoch)
        doctor_say(doctor, DOCTOR_BAD,
                   "%s: one agent has the lease and another says who it is: two agents speak for "
                   "this worker: end one",
                   worker->name);
    else if (meta->block_tokens == 0)
        doctor_say(doctor, DOCTOR_DOUBT,
                   "%s: its agent (on %s) has heard no cache event yet, so it does not know the "
                   "engine's blocks: if the engine has served prompts, see its "
                   "--kv-events-config and the agent's kv-events",
                   worker->name, meta->node);
    else if (!heard->lease.is_whole)
        doctor_say(doctor, DOCTOR_DOUBT,
                   "%s: its agent (on %s) does not know all that the engine holds: give it "
                   "kv-replay, or it learns the rest as prompts come",
                   worker->name, meta->node);
    else
        doctor_say(doctor, DOCTOR_FINE,
                   "%s: its agent (on %s, version %s) speaks: blocks of %" PRIu32
                   " tokens, %" PRIu64 " changes so far",
                   worker->name, meta->node, meta->version, meta->block_tokens,
                   heard->lease.sequence);
}

/* Of a worker whose engine has a connector, and so tiers beneath it. */
static void say_tiers(struct doctor *doctor, const struct doctor_worker *worker,
                      const struct residency_meta *meta)
{
    if (meta->bytes_per_token == 0)
        return;
    if (meta->cpu_bytes_per_s == 0 && meta->ssd_bytes_per_s == 0)
        doctor_say(doctor, DOCTOR_FINE,
                   "%s: its engine has tiers, from which nothing was loaded yet: `samovar show "
                   "tiers` on %s says how they are",
                   worker->name, meta->node);
    else
        doctor_say(doctor, DOCTOR_FINE,
                   "%s: its engine has tiers: loads from CPU memory at %.0f MB/s, from SSD at "
                   "%.0f (0: none yet); `samovar show tiers` on %s says how they are",
                   worker->name, (double)meta->cpu_bytes_per_s / 1e6,
                   (double)meta->ssd_bytes_per_s / 1e6, meta->node);
}

static void say_agent(struct doctor *doctor, struct doctor_worker *worker)
{
    struct heard heard;

    hear(doctor, worker, &heard);
    if (!heard.has_lease)
        doctor_say(doctor, DOCTOR_BAD,
                   "%s: no agent speaks for it: is samovar-agent running beside it, with this "
                   "redis, and does it advertise this url?",
                   worker->name);
    else if (!heard.is_lease_read || !heard.is_meta_read)
        doctor_say(doctor, DOCTOR_BAD,
                   "%s: what its agent says is not understood: run the same version as here",
                   worker->name);
    else if (heard.lease.fingerprint != doctor->fingerprint)
        doctor_say(doctor, DOCTOR_BAD,
                   "%s: its agent names prompts otherwise (fingerprint %016" PRIx64
                   ", ours is %016" PRIx64 "): give both the same secret-file and version",
                   worker->name, heard.lease.fingerprint, doctor->fingerprint);
    else
        say_known(doctor, worker, &heard);
    if (heard.is_lease_read && heard.is_meta_read)
        say_tiers(doctor, worker, &heard.meta);
    worker->has_lease = heard.is_lease_read && heard.lease.fingerprint == doctor->fingerprint;
    worker->sequence = worker->has_lease ? heard.lease.sequence : 0;
}

void doctor_examine_agents(struct doctor *doctor)
{
    char key[RESIDENCY_KEY_BYTES_MAX], line[RESIDENCY_KEY_BYTES_MAX + 16];
    const size_t configured_count = doctor->worker_count;

    if (doctor->redis == NULL)
        return;
    residency_key_workers(key, doctor->fingerprint);
    snprintf(line, sizeof line, "SMEMBERS %s", key);
    (void)ask(doctor, line, take_name, doctor);
    if (doctor->worker_count == configured_count)
        doctor_say(doctor, configured_count == 0 ? DOCTOR_BAD : DOCTOR_DOUBT,
                   "no agent names a worker%s under our fingerprint (%016" PRIx64
                   "): is one running, with this redis and the same secret-file?",
                   configured_count == 0 ? "" : " that is not configured", doctor->fingerprint);
    for (size_t i = 0; i < doctor->worker_count; i++)
        say_agent(doctor, &doctor->workers[i]);
}

uint64_t doctor_agents_sequence(struct doctor *doctor)
{
    uint64_t sequence = 0;

    for (size_t i = 0; i < doctor->worker_count && doctor->redis != NULL; i++) {
        struct heard heard;

        if (!doctor->workers[i].has_lease)
            continue;
        hear(doctor, &doctor->workers[i], &heard);
        if (heard.is_lease_read)
            sequence += heard.lease.sequence;
    }
    return sequence;
}
