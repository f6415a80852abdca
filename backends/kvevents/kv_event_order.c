/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_order.h"

#include <assert.h>

/*
 * DESIGN
 *
 *   published   7 8 . . 11 12 13          replay from 9:  9 10 11 12 end
 *   delivered   7 8 [hold 11 12 13]  ->   9 10 11 12, then of those held 13; 11 and 12 twice
 *
 * A replay holds all up to the moment it is answered, and comes by another connection than what is
 * published: so published messages wait for its end, and some come twice. Hence a sequence below
 * `next` proves nothing. What proves a new process is a sequence that does not rise above the last
 * published one (a PUB socket keeps order), or, for messages that a replay may have given us, a
 * batch that is younger than all we know by the engine's own clock.
 *
 * Progress is certain: a replay ends, then a cool-down begins, and a hole within it waits for its
 * end. None is asked for twice from the same place: what the first did not bring is lost for good,
 * and the rest goes on. So an engine whose buffer is too short, or that answers nothing, costs one
 * replay per cool-down, however often its sequence jumps.
 *
 * A connection that broke is the other sign of a new process, and one that is seen at once. That it
 * may be the same one is no matter: a replay from 0 says again what is true of it.
 */

void kv_event_order_init(struct kv_event_order *order, struct kv_event_order_config config)
{
    *order = (struct kv_event_order){.config = config};
}

/* Nothing is known of the engine's process any more. */
static void begin_epoch(struct kv_event_order *order)
{
    order->epoch++;
    order->next = 0;
    order->has_live = false;
    order->has_asked = false;
    order->newest_at_s = 0;
}

static void ask(struct kv_event_order *order)
{
    order->is_replaying = true;
    order->has_asked = true;
    order->asked = order->next;
}

bool kv_event_order_connect(struct kv_event_order *order)
{
    assert(!order->is_replaying);
    if (order->config.has_replay)
        ask(order);
    return order->is_replaying;
}

void kv_event_order_disconnect(struct kv_event_order *order)
{
    order->is_replaying = false;
    order->is_waiting = false;
    begin_epoch(order);
}

static enum kv_event_verdict deliver(struct kv_event_order *order, double at_s)
{
    order->next++;
    if (at_s > order->newest_at_s)
        order->newest_at_s = at_s;
    return KV_EVENT_DELIVER;
}

static bool is_of_another_process(const struct kv_event_order *order, uint64_t sequence,
                                  double at_s)
{
    if (order->has_live && sequence <= order->live)
        return true;
    return sequence < order->next && at_s > order->newest_at_s;
}

static enum kv_event_verdict bridge(struct kv_event_order *order, uint64_t sequence,
                                    uint64_t now_ms)
{
    const bool is_asked = order->has_asked && order->asked == order->next;

    if (!order->config.has_replay || is_asked) {
        order->next = sequence;
        return KV_EVENT_LOST;
    }
    if (now_ms < order->allowed_ms) {
        order->is_waiting = true;
        return KV_EVENT_HOLD;
    }
    ask(order);
    return KV_EVENT_REPLAY;
}

enum kv_event_verdict kv_event_order_live(struct kv_event_order *order, uint64_t sequence,
                                          double at_s, uint64_t now_ms)
{
    if (order->is_replaying || order->is_waiting)
        return KV_EVENT_HOLD;
    if (is_of_another_process(order, sequence, at_s)) {
        begin_epoch(order);
        return KV_EVENT_RESTARTED;
    }
    if (sequence > order->next)
        return bridge(order, sequence, now_ms);
    order->has_live = true;
    order->live = sequence;
    return sequence == order->next ? deliver(order, at_s) : KV_EVENT_DUPLICATE;
}

enum kv_event_verdict kv_event_order_reply(struct kv_event_order *order, uint64_t sequence,
                                           double at_s)
{
    if (!order->is_replaying || sequence < order->next)
        return KV_EVENT_DUPLICATE;
    if (sequence > order->next) {
        order->next = sequence;
        return KV_EVENT_LOST;
    }
    return deliver(order, at_s);
}

void kv_event_order_replay_end(struct kv_event_order *order, uint64_t now_ms)
{
    assert(order->is_replaying);
    order->is_replaying = false;
    order->allowed_ms = now_ms + order->config.cooldown_ms;
}

bool kv_event_order_is_due(struct kv_event_order *order, uint64_t now_ms)
{
    const bool is_due = order->is_waiting && now_ms >= order->allowed_ms;

    if (is_due)
        order->is_waiting = false;
    return is_due;
}
