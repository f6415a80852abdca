/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_feed_parts.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/redis/stream_entry.h"

/*
 * DESIGN
 *
 * A page is 4,090 records to store, which takes about as long as to fetch it. So only a few are in
 * flight, of all sources together: the loop is never held by more of them than that in one turn,
 * and a fleet that is read at a router's start takes turns.
 */

enum {
    PAGES_IN_FLIGHT_MAX = 4,
    PAGES_OF_SOURCE_MAX = 2,
    CHANGE_COUNT = 16, /* of one XRANGE */
    ID_BYTES = 32,
};

/* One command about a source. */
struct read {
    struct residency_feed *feed;
    uint32_t source;
    uint64_t ticket;
    uint32_t page;
};

/* The source, if it still waits for this. */
static struct feed_source *source_of(const struct read *read)
{
    struct feed_source *source = read->feed->is_closing ? NULL : read->feed->sources[read->source];

    return source != NULL && source->ticket == read->ticket ? source : NULL;
}

static int send_read(struct feed_source *source, const struct slice *words, size_t count,
                     redis_done_fn *on_done, uint32_t page)
{
    struct read *read = malloc(sizeof *read);
    int status;

    if (read == NULL)
        return -ENOMEM;
    *read = (struct read){source->feed, source->number, source->ticket, page};
    status = redis_link_send(source->feed->link, words, count, on_done, read);
    if (status < 0)
        free(read);
    return status;
}

void feed_read_end(struct feed_source *source)
{
    if (list_node_is_linked(&source->in_paging))
        list_remove(&source->feed->paging, &source->in_paging);
    source->ticket = ++source->feed->ticket;
    source->pages_in_flight = 0;
}

/* Another thing is read of it from now on. */
static struct feed_source *begin(struct residency_feed *feed, uint32_t number,
                                 struct residency_life life)
{
    residency_feed_stop(feed, number);
    feed->sources[number]->life = life;
    return feed->sources[number];
}

static void broken(struct feed_source *source, int error)
{
    feed_read_end(source);
    source->feed->callbacks->on_broken(source->feed->ctx, source->number, error == -EPROTO);
}

/* ---- entries ---- */

/* "<sequence>-1" */
static bool read_id(struct slice id, uint64_t *sequence)
{
    size_t i = 0;

    *sequence = 0;
    for (; i < id.len && id.ptr[i] >= '0' && id.ptr[i] <= '9' && i < 20; i++)
        *sequence = *sequence * 10 + (uint64_t)(id.ptr[i] - '0');
    return i > 0 && slice_eq(slice_skip(id, i), SLICE("-1"));
}

int feed_read_entry(struct residency_feed *feed, const struct redis_reply *reply,
                    uint64_t *sequence, struct residency_change *change)
{
    struct stream_entry entry;
    int status = -EPROTO;

    if (stream_entry_read(reply, &entry) && read_id(entry.id, sequence) && entry.has_bytes)
        status = residency_change_read(entry.bytes, change);
    feed->stats.bad_total += status < 0;
    return status;
}

/* ---- the last change ---- */

static void on_last(void *ctx, int error, const struct redis_reply *reply)
{
    struct read *read = ctx;
    struct feed_source *source = source_of(read);
    struct residency_change change;
    uint64_t sequence = 0;

    free(read);
    if (source == NULL)
        return;
    if (error == 0 && redis_reply_kind(reply) != REDIS_REPLY_LIST)
        error = -EPROTO;
    if (error == 0 && redis_reply_count(reply) > 0)
        error = feed_read_entry(source->feed, redis_reply_at(reply, 0), &sequence, &change);
    if (error < 0) {
        broken(source, error);
        return;
    }
    feed_read_end(source);
    source->feed->callbacks->on_last(source->feed->ctx, source->number, sequence,
                                     redis_reply_count(reply) > 0 ? &change : NULL);
}

int residency_feed_last(struct residency_feed *feed, uint32_t source, struct residency_life life)
{
    struct feed_source *of = begin(feed, source, life);
    char key[RESIDENCY_KEY_BYTES_MAX];
    struct slice words[] = {
        SLICE("XREVRANGE"), slice_of(key, residency_key_out(key, of->name, life)),
        SLICE("+"),         SLICE("-"),
        SLICE("COUNT"),     SLICE("1"),
    };

    return send_read(of, words, sizeof words / sizeof *words, on_last, 0);
}

/* ---- pages ---- */

static void ask_pages(struct residency_feed *feed);

static void on_page(void *ctx, int error, const struct redis_reply *reply)
{
    struct read *read = ctx;
    struct residency_feed *feed = read->feed;
    struct feed_source *source = source_of(read);
    uint32_t page = read->page;

    free(read);
    feed->pages_in_flight--;
    if (source != NULL) {
        source->pages_in_flight--;
        if (error == 0 && redis_reply_kind(reply) != REDIS_REPLY_TEXT &&
            redis_reply_kind(reply) != REDIS_REPLY_NIL)
            error = -EPROTO;
        if (error < 0)
            broken(source, error);
        else
            feed->callbacks->on_page(feed->ctx, source->number, page, redis_reply_text(reply));
    }
    if (!feed->is_closing)
        ask_pages(feed);
}

static int ask_page(struct feed_source *source)
{
    char key[RESIDENCY_KEY_BYTES_MAX];
    size_t len = residency_key_page(key, source->name, source->life, source->page);
    struct slice words[] = {SLICE("GET"), slice_of(key, len)};
    int status = send_read(source, words, 2, on_page, source->page);

    if (status < 0)
        return status;
    source->feed->pages_in_flight++;
    source->pages_in_flight++;
    if (++source->page == source->page_end)
        list_remove(&source->feed->paging, &source->in_paging);
    return 0;
}

/* Those that read pages take turns. Where a command is not taken, replies that are on their way
 * fail too, and who waits is told by them, or by its own next step. */
static void ask_pages(struct residency_feed *feed)
{
    size_t tries = feed->paging.count;

    while (tries-- > 0 && feed->paging.count > 0 && feed->pages_in_flight < PAGES_IN_FLIGHT_MAX) {
        struct feed_source *source =
            container_of(feed->paging.head.next, struct feed_source, in_paging);

        list_remove(&feed->paging, &source->in_paging);
        list_append(&feed->paging, &source->in_paging);
        while (list_node_is_linked(&source->in_paging) &&
               source->pages_in_flight < PAGES_OF_SOURCE_MAX &&
               feed->pages_in_flight < PAGES_IN_FLIGHT_MAX) {
            if (ask_page(source) < 0) {
                broken(source, -ENOTCONN);
                break;
            }
        }
    }
}

int residency_feed_pages(struct residency_feed *feed, uint32_t source, struct residency_life life,
                         uint32_t page, uint32_t count)
{
    struct feed_source *of = begin(feed, source, life);

    assert(count > 0);

    if (redis_link_state(feed->link) != REDIS_LINK_READY)
        return -ENOTCONN;
    of->page = page;
    of->page_end = page + count;
    list_append(&feed->paging, &of->in_paging);
    ask_pages(feed);
    return 0;
}

/* ---- changes at once ---- */

/* Tells of each entry, as long as it is asked for. -EPROTO: one that is none. */
static int take_changes(const struct read *read, const struct redis_reply *reply)
{
    struct residency_feed *feed = read->feed;

    for (size_t i = 0; i < redis_reply_count(reply); i++) {
        struct residency_change change;
        uint64_t sequence;

        if (source_of(read) == NULL) /* whoever asked has had enough */
            return 0;
        if (feed_read_entry(feed, redis_reply_at(reply, i), &sequence, &change) < 0)
            return -EPROTO;
        feed->callbacks->on_change(feed->ctx, read->source, sequence, &change);
    }
    return 0;
}

static void on_changes(void *ctx, int error, const struct redis_reply *reply)
{
    struct read *read = ctx;
    struct feed_source *source;

    if (error == 0 && redis_reply_kind(reply) != REDIS_REPLY_LIST)
        error = -EPROTO;
    if (error == 0 && !read->feed->is_closing)
        error = take_changes(read, reply);
    source = source_of(read);
    free(read);
    if (source == NULL)
        return;
    if (error < 0) {
        broken(source, error);
        return;
    }
    feed_read_end(source);
    source->feed->callbacks->on_no_more(source->feed->ctx, source->number);
}

int residency_feed_changes(struct residency_feed *feed, uint32_t source, struct residency_life life,
                           uint64_t sequence)
{
    struct feed_source *of = begin(feed, source, life);
    char key[RESIDENCY_KEY_BYTES_MAX], from[ID_BYTES], count[ID_BYTES];
    struct slice words[] = {
        SLICE("XRANGE"), slice_of(key, residency_key_out(key, of->name, life)),
        SLICE(""),       SLICE("+"),
        SLICE("COUNT"),  SLICE(""),
    };

    snprintf(from, sizeof from, "%" PRIu64 "-0", sequence);
    snprintf(count, sizeof count, "%d", CHANGE_COUNT);
    words[2] = slice_of_string(from);
    words[5] = slice_of_string(count);
    return send_read(of, words, sizeof words / sizeof *words, on_changes, 0);
}
