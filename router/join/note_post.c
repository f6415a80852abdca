/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/note_post.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/list.h"
#include "backends/runtime/log.h"
#include "backends/worker_set.h"

/*
 * DESIGN
 *
 * A stream keeps some thousand entries, so that an agent that restarts finds the newest; one that
 * reads is never that far behind. It is cut by whole nodes ("~"), which costs Redis nothing. It
 * expires a quarter of an hour after its last note, give or take a minute: workers come and go, and
 * nobody else would ever remove what was said to those that are gone.
 *
 * What was sent and not confirmed when a connection ends is counted as refused, though Redis may
 * have taken it: nobody sends it again, since the same note twice would do no harm but also no
 * good.
 */
enum {
    GATHER_MS = 5,
    RENEW_MS = 60000,
    BATCH_BYTES_MAX = 4 << 20,
    WARNED_MS = 10000,
};

#define STREAM_ENTRIES_MAX SLICE("2048")
#define STREAM_TTL_S       SLICE("900")

struct note_post {
    struct note_post_config config;
    struct note_batch batch;
    uv_timer_t gather;
    struct note_post_stats stats;
    uint32_t sent_count; /* entries without a reply yet */
    bool is_timer_open;
    bool is_closing;
    uint64_t warned_ms;
    struct renewal {
        uint64_t worker; /* its id */
        uint64_t at_ms;
    } renewals[WORKER_COUNT_MAX]; /* by id: when its stream's end was put off last */
};

/* An entry under way: how many notes it carried. */
struct sent_entry {
    struct note_post *post;
    uint32_t note_count;
};

static void free_when_over(struct note_post *post)
{
    if (post->is_closing && !post->is_timer_open && post->sent_count == 0)
        free(post);
}

static void warn(struct note_post *post, int error)
{
    uint64_t now_ms = uv_now(post->config.loop);

    if (post->warned_ms > 0 && now_ms - post->warned_ms < WARNED_MS)
        return;
    post->warned_ms = now_ms;
    LOG(LOG_WARN, "notes_refused", log_text("why", strerror(-error)),
        log_text(error == -EACCES ? "help" : NULL, "routers must be allowed to XADD to smv:*:in"));
}

static void on_sent(void *ctx, int error, const struct redis_reply *reply)
{
    struct sent_entry *sent = ctx;
    struct note_post *post = sent->post;

    if (error < 0) {
        post->stats.refused_total += sent->note_count;
        if (reply != NULL)
            warn(post, error);
    } else {
        post->stats.posted_total += sent->note_count;
    }
    post->sent_count--;
    free(sent);
    free_when_over(post);
}

/* Puts off the end of the stream, now and then. */
static void renew(struct note_post *post, const struct note_entry *entry)
{
    const struct slice words[] = {SLICE("EXPIRE"), slice_of(entry->key, entry->key_len),
                                  STREAM_TTL_S};
    struct renewal *renewal = &post->renewals[entry->worker % WORKER_COUNT_MAX];
    uint64_t now_ms = uv_now(post->config.loop);

    if (renewal->worker == entry->worker && now_ms - renewal->at_ms < RENEW_MS)
        return;
    if (redis_link_send(post->config.link, words, array_count(words), NULL, NULL) == 0)
        *renewal = (struct renewal){entry->worker, now_ms};
}

static void send_entry(struct note_post *post, const struct note_entry *entry)
{
    const struct slice words[] = {
        SLICE("XADD"),      slice_of(entry->key, entry->key_len),
        SLICE("MAXLEN"),    SLICE("~"),
        STREAM_ENTRIES_MAX, SLICE("*"),
        SLICE("b"),         buf_slice(&entry->bytes),
    };
    struct sent_entry *sent = malloc(sizeof *sent);

    if (sent != NULL) {
        *sent = (struct sent_entry){post, entry->note_count};
        post->sent_count++;
        if (redis_link_send(post->config.link, words, array_count(words), on_sent, sent) == 0) {
            post->stats.entries_total++;
            renew(post, entry);
            return;
        }
        post->sent_count--;
        free(sent);
    }
    post->stats.dropped_total += entry->note_count;
}

static void on_gathered(uv_timer_t *timer)
{
    struct note_post *post = timer->data;
    struct note_entry *entry;

    while ((entry = note_batch_take(&post->batch)) != NULL) {
        send_entry(post, entry);
        note_entry_free(entry);
    }
}

struct note_post *note_post_create(struct note_post_config config)
{
    struct note_post *post = calloc(1, sizeof *post);
    int status;

    if (post == NULL)
        return NULL;
    post->config = config;
    note_batch_init(&post->batch, config.fingerprint, config.router, BATCH_BYTES_MAX);
    status = uv_timer_init(config.loop, &post->gather);
    assert(status == 0);
    post->gather.data = post;
    post->is_timer_open = true;
    return post;
}

bool note_post_is_open(const struct note_post *post)
{
    return redis_link_state(post->config.link) == REDIS_LINK_READY;
}

int note_post_add(struct note_post *post, struct note_receiver receiver,
                  const struct residency_note *note, const struct residency_note_block *blocks,
                  size_t block_count)
{
    int status = -ENOTCONN;

    if (note_post_is_open(post))
        status = note_batch_add(&post->batch, receiver, note, blocks, block_count);
    if (status < 0)
        post->stats.dropped_total++;
    else if (!uv_is_active((uv_handle_t *)&post->gather))
        uv_timer_start(&post->gather, on_gathered, GATHER_MS, 0);
    return status;
}

struct note_post_stats note_post_stats(const struct note_post *post)
{
    return post->stats;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct note_post *post = handle->data;

    post->is_timer_open = false;
    free_when_over(post);
}

void note_post_close(struct note_post **post_ptr)
{
    struct note_post *post = *post_ptr;

    *post_ptr = NULL;
    note_batch_release(&post->batch);
    post->is_closing = true;
    uv_close((uv_handle_t *)&post->gather, on_timer_closed);
}
