/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_source_parts.h"

#include "backends/runtime/clock.h"

#include <stdlib.h>

/*
 * DESIGN
 *
 * The thread judges, and the loop only takes. A message that there is no room for is dropped before
 * it is judged: the next one then shows a hole, and what heals holes heals this. A notice waits for
 * the next batch delivered.
 *
 * Before the end of a connection is acted upon all that came by it is taken, so that it cannot be
 * mistaken for what the engine's successor says.
 *
 * A replay that was given up leaves a gap that no later one would be asked to fill. So after a
 * while everything is asked for once more, as if the connection were new: what the engine still
 * keeps of its messages says again what is true.
 */

/* ---- what goes to the loop ---- */

/* Never left out, whatever waits already: it is few bytes, and who does not hear it goes on to
 * believe what is over. */
static void tell(struct kv_event_source *source, enum kv_event_contact contact)
{
    struct arrival *arrival = calloc(1, sizeof *arrival);

    if (arrival == NULL)
        abort();
    list_node_init(&arrival->in_list);
    arrival->is_contact = true;
    arrival->contact = contact;
    source_enqueue(source, arrival);
}

static void lose(struct kv_event_source *source, uint64_t batch_count)
{
    source->notice.lost_count += batch_count;
    source_count(source, &source->stats.lost_count, batch_count);
}

static void deliver(struct kv_event_source *source, struct arrival *arrival)
{
    if (arrival->is_broken) {
        source_count(source, &source->stats.refused_count, 1);
        lose(source, 1);
        source_arrival_destroy(source, arrival);
        return;
    }
    arrival->notice = source->notice;
    source->notice = (struct kv_event_notice){false, 0};
    source_enqueue(source, arrival);
}

/* ---- judging ---- */

/* From order->next on. What fails here falls silent, and is given up as such. */
static void request_replay(struct kv_event_source *source)
{
    source->advanced_ms = clock_now_ms();
    source_count(source, &source->stats.replay_count, 1);
    kv_event_sockets_request(&source->sockets, source->order.next);
}

/* Judges until there is a verdict on it; true: it is held, and the caller's list keeps it. */
static bool judge_live(struct kv_event_source *source, struct arrival *arrival)
{
    for (;;) {
        const uint64_t next = source->order.next;

        switch (kv_event_order_live(&source->order, arrival->sequence, arrival->batch.at_s,
                                    clock_now_ms())) {
        case KV_EVENT_DELIVER:
            deliver(source, arrival);
            return false;
        case KV_EVENT_DUPLICATE:
            source_arrival_destroy(source, arrival);
            return false;
        case KV_EVENT_REPLAY:
            request_replay(source);
            return true;
        case KV_EVENT_HOLD:
            return true;
        case KV_EVENT_LOST:
            lose(source, arrival->sequence - next);
            break;
        case KV_EVENT_RESTARTED:
            source->notice = (struct kv_event_notice){true, 0};
            source_count(source, &source->stats.restart_count, 1);
            break;
        }
    }
}

static void judge_reply(struct kv_event_source *source, struct arrival *arrival)
{
    const uint64_t next = source->order.next;
    enum kv_event_verdict verdict =
        kv_event_order_reply(&source->order, arrival->sequence, arrival->batch.at_s);

    if (verdict == KV_EVENT_LOST) {
        lose(source, arrival->sequence - next);
        verdict = kv_event_order_reply(&source->order, arrival->sequence, arrival->batch.at_s);
    }
    if (verdict == KV_EVENT_DELIVER) {
        source->advanced_ms = clock_now_ms();
        deliver(source, arrival);
    } else {
        source_arrival_destroy(source, arrival);
    }
}

/* Judges what was held, oldest first, until one has to be held again. */
static void judge_held(struct kv_event_source *source)
{
    struct arrival *arrival;
    bool is_held = false;

    while (!is_held && (arrival = source_first_of(&source->held)) != NULL) {
        list_remove(&source->held, &arrival->in_list);
        is_held = judge_live(source, arrival);
        if (is_held)
            list_prepend(&source->held, &arrival->in_list);
    }
}

static void end_replay(struct kv_event_source *source)
{
    kv_event_sockets_end_request(&source->sockets);
    kv_event_order_replay_end(&source->order, clock_now_ms());
    judge_held(source);
}

/* The engine said the end: what it has told by then, what was held included, is all. */
static void complete_replay(struct kv_event_source *source)
{
    source->renew_at_ms = 0;
    source->renew_wait_ms = source->config.renew_ms;
    end_replay(source);
    if (!source->order.is_replaying && !source->order.is_waiting)
        tell(source, KV_EVENT_CONTACT_WHOLE);
}

static void on_live(void *ctx, const struct slice *frames, size_t frame_count)
{
    struct kv_event_source *source = ctx;
    struct kv_event_message message;
    struct arrival *arrival;

    if (kv_event_message_read(frames, frame_count, &message) < 0) {
        source_count(source, &source->stats.refused_count, 1);
        return;
    }
    arrival = source_arrival_create(source, &message);
    if (arrival != NULL && judge_live(source, arrival))
        list_append(&source->held, &arrival->in_list);
}

static void on_reply(void *ctx, const struct slice *frames, size_t frame_count)
{
    struct kv_event_source *source = ctx;
    struct kv_event_message message;
    struct arrival *arrival;
    int status = kv_event_reply_read(frames, frame_count, &message);

    if (status < 0)
        source_count(source, &source->stats.refused_count, 1);
    else if (status == 1)
        complete_replay(source);
    else if ((arrival = source_arrival_create(source, &message)) != NULL)
        judge_reply(source, arrival);
}

/* ---- the connection ---- */

/* Of a connection that stands: all that the engine keeps is asked for. */
static void begin(struct kv_event_source *source)
{
    tell(source, KV_EVENT_CONTACT_MADE);
    if (kv_event_order_connect(&source->order))
        request_replay(source);
}

/* What was delivered is not to be believed any more, what waits is nobody's. */
static void forget(struct kv_event_source *source)
{
    kv_event_sockets_end_request(&source->sockets);
    source_drop_all(source, &source->held);
    kv_event_order_disconnect(&source->order);
    source->notice = (struct kv_event_notice){false, 0};
    source->renew_at_ms = 0;
    tell(source, KV_EVENT_CONTACT_LOST);
}

static void on_connected(void *ctx)
{
    struct kv_event_source *source = ctx;

    if (source->is_connected)
        return;
    source->is_connected = true;
    source->renew_wait_ms = source->config.renew_ms;
    source_count(source, &source->stats.made_count, 1);
    begin(source);
}

static void on_disconnected(void *ctx)
{
    struct kv_event_source *source = ctx;

    if (!source->is_connected) /* it never came to a handshake */
        return;
    kv_event_sockets_drain_live(&source->sockets);
    source->is_connected = false;
    source_count(source, &source->stats.broken_count, 1);
    forget(source);
}

static void renew(struct kv_event_source *source)
{
    source->renew_at_ms = 0;
    source->renew_wait_ms *= 2;
    forget(source);
    begin(source);
}

static const struct kv_event_sockets_callbacks callbacks = {
    .on_live = on_live,
    .on_reply = on_reply,
    .on_connected = on_connected,
    .on_disconnected = on_disconnected,
};

/* ---- the thread ---- */

static long left_ms(uint64_t due_ms)
{
    const uint64_t now_ms = clock_now_ms();

    return due_ms > now_ms ? (long)(due_ms - now_ms) : 0;
}

static long wait_ms(const struct kv_event_source *source)
{
    if (source->order.is_replaying)
        return left_ms(source->advanced_ms + source->config.replay_idle_ms);
    if (source->order.is_waiting)
        return left_ms(source->order.allowed_ms);
    return source->renew_at_ms != 0 ? left_ms(source->renew_at_ms) : -1;
}

static void give_up(struct kv_event_source *source)
{
    source_count(source, &source->stats.given_up_count, 1);
    if (source->renew_at_ms == 0 && source->renew_wait_ms > 0)
        source->renew_at_ms = clock_now_ms() + source->renew_wait_ms;
    end_replay(source);
}

static void act_on_time(struct kv_event_source *source)
{
    if (kv_event_order_is_due(&source->order, clock_now_ms()))
        judge_held(source);
    if (wait_ms(source) != 0)
        return;
    if (source->order.is_replaying)
        give_up(source);
    else if (!source->order.is_waiting && source->renew_at_ms != 0)
        renew(source);
}

void source_listen(void *argument)
{
    struct kv_event_source *source = argument;

    kv_event_sockets_listen(&source->sockets, &callbacks, source);
    while (kv_event_sockets_serve(&source->sockets, wait_ms(source)) == 0)
        act_on_time(source);
}
