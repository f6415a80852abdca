/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_event_order: puts an engine's messages into one order without holes, or says where one is. An
 * engine numbers its messages from 0 in each of its processes, publishes each once, and answers
 * requests to replay the last thousands; a subscriber that is slow or away loses some. Nothing of
 * it says which process speaks. Pure: no socket, no clock; one order is used by one thread.
 */
#ifndef BACKENDS_KVEVENTS_KV_EVENT_ORDER_H
#define BACKENDS_KVEVENTS_KV_EVENT_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct kv_event_order_config {
    bool has_replay;      /* the engine answers replay requests */
    uint32_t cooldown_ms; /* from the end of a replay to the next one, at least */
};

/* All fields may be read, none written. */
struct kv_event_order {
    struct kv_event_order_config config;
    uint64_t epoch;     /* engine processes seen to begin, and connections lost */
    uint64_t next;      /* sequence of the message to deliver next */
    bool has_live;      /* a published message was judged in this epoch */
    uint64_t live;      /* its sequence: that of the last one */
    double newest_at_s; /* the engine's clock in what was delivered in this epoch; 0 */
    bool is_replaying;  /* from a replay's request to kv_event_order_replay_end() */
    bool is_waiting; /* for allowed_ms, to ask for a hole that was found; never while replaying */
    uint64_t allowed_ms; /* no replay before, but for one at a connection */
    bool has_asked;      /* for a replay, in this epoch */
    uint64_t asked;      /* from where, the last time: never twice from the same place */
};

enum kv_event_verdict {
    KV_EVENT_DELIVER,   /* it is the next one */
    KV_EVENT_DUPLICATE, /* was delivered already: drop it */
    KV_EVENT_HOLD,      /* a replay runs or is waited for: keep it, judge it again behind that */
    KV_EVENT_REPLAY,    /* request a replay from order->next, and hold the message */
    KV_EVENT_LOST, /* judge it again; what lies between the old `next` and it is lost for good */
    KV_EVENT_RESTARTED, /* judge it again; the engine is another process with an empty cache */
};

/* An order that expects message 0, and is not connected yet. */
void kv_event_order_init(struct kv_event_order *order, struct kv_event_order_config config);

/*
 * The engine is there. True: a replay is to be requested at once, from 0, whatever is published,
 * because an engine that idles says nothing of what it holds.
 */
MUST_CHECK bool kv_event_order_connect(struct kv_event_order *order);

/*
 * The engine is gone, or cannot be reached: who answers next may be another process, and message 0
 * is expected again. What was held is to be dropped, a replay that runs to be given up.
 */
void kv_event_order_disconnect(struct kv_event_order *order);

/*
 * Judges a published message, in the order of their arrival. at_s: its batch's. After LOST or
 * RESTARTED, and for one that was held, the same message is judged again, at most twice more.
 */
enum kv_event_verdict kv_event_order_live(struct kv_event_order *order, uint64_t sequence,
                                          double at_s, uint64_t now_ms);

/* Judges a message of a replay: DELIVER, DUPLICATE, LOST. One that comes when no replay runs (it
 * was given up) is a DUPLICATE. */
enum kv_event_verdict kv_event_order_reply(struct kv_event_order *order, uint64_t sequence,
                                           double at_s);

/* A replay said its end, or nothing for too long. Judge what was held, oldest first. */
void kv_event_order_replay_end(struct kv_event_order *order, uint64_t now_ms);

/* True: what was waited for (is_waiting) is over. Judge what was held, oldest first. */
MUST_CHECK bool kv_event_order_is_due(struct kv_event_order *order, uint64_t now_ms);

#endif
