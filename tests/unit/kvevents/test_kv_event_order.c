/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_order.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { COOLDOWN_MS = 1000 };

static struct kv_event_order order_at(bool has_replay, uint64_t next)
{
    struct kv_event_order order;

    kv_event_order_init(&order, (struct kv_event_order_config){has_replay, COOLDOWN_MS});
    if (kv_event_order_connect(&order))
        kv_event_order_replay_end(&order, 0);
    for (uint64_t i = 0; i < next; i++)
        cr_assert(eq(int, kv_event_order_live(&order, i, (double)i + 1, 0), KV_EVENT_DELIVER));
    return order;
}

TestSuite(kv_event_order, .fini = leak_check);

Test(kv_event_order, what_an_idle_engine_holds_is_asked_for_at_once)
{
    struct kv_event_order order;
    kv_event_order_init(&order, (struct kv_event_order_config){true, COOLDOWN_MS});

    cr_assert(kv_event_order_connect(&order));

    cr_assert(order.is_replaying);
    cr_assert(eq(u64, order.next, 0));
    cr_assert(eq(int, kv_event_order_live(&order, 7, 8, 0), KV_EVENT_HOLD));
}

Test(kv_event_order, a_hole_is_filled_by_a_replay_and_nothing_comes_twice)
{
    struct kv_event_order order = order_at(true, 9);

    cr_assert(eq(int, kv_event_order_live(&order, 11, 12, COOLDOWN_MS), KV_EVENT_REPLAY));
    cr_assert(eq(u64, order.next, 9));
    cr_assert(eq(int, kv_event_order_live(&order, 12, 13, COOLDOWN_MS), KV_EVENT_HOLD));
    for (uint64_t i = 9; i <= 12; i++)
        cr_assert(eq(int, kv_event_order_reply(&order, i, (double)i + 1), KV_EVENT_DELIVER));
    kv_event_order_replay_end(&order, COOLDOWN_MS);

    cr_assert(eq(int, kv_event_order_live(&order, 11, 12, COOLDOWN_MS), KV_EVENT_DUPLICATE));
    cr_assert(eq(int, kv_event_order_live(&order, 12, 13, COOLDOWN_MS), KV_EVENT_DUPLICATE));
    cr_assert(eq(int, kv_event_order_live(&order, 13, 14, COOLDOWN_MS), KV_EVENT_DELIVER));
    cr_assert(eq(u64, order.epoch, 0));
}

Test(kv_event_order, a_replay_that_begins_too_late_says_what_is_lost)
{
    struct kv_event_order order = order_at(true, 2);
    cr_assert(eq(int, kv_event_order_live(&order, 8, 9, COOLDOWN_MS), KV_EVENT_REPLAY));

    cr_assert(eq(int, kv_event_order_reply(&order, 1, 2), KV_EVENT_DUPLICATE));
    cr_assert(eq(int, kv_event_order_reply(&order, 5, 6), KV_EVENT_LOST));
    cr_assert(eq(int, kv_event_order_reply(&order, 5, 6), KV_EVENT_DELIVER));
    cr_assert(eq(int, kv_event_order_reply(&order, 7, 8), KV_EVENT_LOST));
    cr_assert(eq(int, kv_event_order_reply(&order, 7, 8), KV_EVENT_DELIVER));
}

Test(kv_event_order, a_replay_that_fills_nothing_is_not_asked_for_again_before_the_cool_down)
{
    struct kv_event_order order = order_at(true, 2);
    uint64_t now_ms = COOLDOWN_MS;
    cr_assert(eq(int, kv_event_order_live(&order, 8, 9, now_ms), KV_EVENT_REPLAY));
    kv_event_order_replay_end(&order, now_ms);

    cr_assert(eq(int, kv_event_order_live(&order, 8, 9, now_ms), KV_EVENT_LOST));
    cr_assert(eq(int, kv_event_order_live(&order, 8, 9, now_ms), KV_EVENT_DELIVER));
    cr_assert(
        eq(int, kv_event_order_live(&order, 10, 11, now_ms + COOLDOWN_MS - 1), KV_EVENT_HOLD));
    cr_assert(not(kv_event_order_is_due(&order, now_ms + COOLDOWN_MS - 1)));
    cr_assert(eq(int, kv_event_order_live(&order, 11, 12, now_ms + COOLDOWN_MS), KV_EVENT_HOLD),
              "behind one that waits");
    cr_assert(kv_event_order_is_due(&order, now_ms + COOLDOWN_MS));
    cr_assert(eq(int, kv_event_order_live(&order, 10, 11, now_ms + COOLDOWN_MS), KV_EVENT_REPLAY));
}

Test(kv_event_order, no_replay_is_asked_for_twice_from_one_place)
{
    struct kv_event_order order;
    kv_event_order_init(&order, (struct kv_event_order_config){true, 0});
    cr_assert(kv_event_order_connect(&order));
    kv_event_order_replay_end(&order, 0);

    cr_assert(eq(int, kv_event_order_live(&order, 3, 1, 0), KV_EVENT_LOST), "asked at the start");
    cr_assert(eq(int, kv_event_order_live(&order, 3, 1, 0), KV_EVENT_DELIVER));
    cr_assert(eq(int, kv_event_order_live(&order, 9, 2, 0), KV_EVENT_REPLAY));
    kv_event_order_replay_end(&order, 0);
    cr_assert(eq(int, kv_event_order_live(&order, 9, 2, 0), KV_EVENT_LOST));
}

Test(kv_event_order, without_a_replay_a_hole_is_lost_and_the_rest_goes_on)
{
    struct kv_event_order order = order_at(false, 0);

    cr_assert(eq(int, kv_event_order_live(&order, 50, 1, 0), KV_EVENT_LOST));
    cr_assert(eq(int, kv_event_order_live(&order, 50, 1, 0), KV_EVENT_DELIVER));
    cr_assert(eq(int, kv_event_order_live(&order, 51, 2, 0), KV_EVENT_DELIVER));
}

Test(kv_event_order, a_sequence_that_goes_back_is_another_process)
{
    struct kv_event_order order = order_at(false, 9);

    cr_assert(eq(int, kv_event_order_live(&order, 0, 0.5, 0), KV_EVENT_RESTARTED),
              "whatever its clock says");
    cr_assert(eq(int, kv_event_order_live(&order, 0, 0.5, 0), KV_EVENT_DELIVER));
    cr_assert(eq(u64, order.epoch, 1));
    cr_assert(eq(int, kv_event_order_live(&order, 0, 0.5, 0), KV_EVENT_RESTARTED),
              "one message and a restart");
}

Test(kv_event_order, another_process_whose_first_messages_were_missed_is_replayed)
{
    struct kv_event_order order = order_at(true, 9);

    cr_assert(eq(int, kv_event_order_live(&order, 3, 100, COOLDOWN_MS), KV_EVENT_RESTARTED));
    cr_assert(eq(int, kv_event_order_live(&order, 3, 100, COOLDOWN_MS), KV_EVENT_REPLAY));
    cr_assert(eq(u64, order.next, 0));
}

Test(kv_event_order, another_process_is_known_by_its_clock_when_only_a_replay_spoke_before)
{
    struct kv_event_order order, other;
    kv_event_order_init(&order, (struct kv_event_order_config){true, COOLDOWN_MS});
    cr_assert(kv_event_order_connect(&order));
    for (uint64_t i = 0; i < 5; i++)
        cr_assert(eq(int, kv_event_order_reply(&order, i, (double)i + 1), KV_EVENT_DELIVER));
    kv_event_order_replay_end(&order, 0);
    other = order;

    cr_assert(eq(int, kv_event_order_live(&other, 4, 5, 0), KV_EVENT_DUPLICATE));
    cr_assert(eq(int, kv_event_order_live(&order, 0, 60, 0), KV_EVENT_RESTARTED));
    cr_assert(eq(int, kv_event_order_live(&order, 0, 60, 0), KV_EVENT_DELIVER));
}

Test(kv_event_order, a_reply_to_a_replay_given_up_is_dropped)
{
    struct kv_event_order order = order_at(true, 2);

    cr_assert(eq(int, kv_event_order_reply(&order, 2, 3), KV_EVENT_DUPLICATE));
    cr_assert(eq(u64, order.next, 2));
}

Test(kv_event_order, whoever_answers_behind_a_broken_connection_is_taken_for_another_process)
{
    struct kv_event_order order = order_at(true, 9);

    kv_event_order_disconnect(&order);
    cr_assert(kv_event_order_connect(&order), "without regard to the cool-down");
    cr_assert(eq(u64, order.next, 0));
    cr_assert(eq(int, kv_event_order_reply(&order, 0, 0.5), KV_EVENT_DELIVER));
    kv_event_order_replay_end(&order, 0);

    cr_assert(eq(int, kv_event_order_live(&order, 1, 0.6, 0), KV_EVENT_DELIVER));
}

Test(kv_event_order, a_connection_that_breaks_ends_replays_and_waits)
{
    struct kv_event_order replaying = order_at(true, 2), waiting = replaying;
    cr_assert(eq(int, kv_event_order_live(&replaying, 5, 6, COOLDOWN_MS), KV_EVENT_REPLAY));
    cr_assert(eq(int, kv_event_order_live(&waiting, 5, 6, 0), KV_EVENT_HOLD));

    kv_event_order_disconnect(&replaying);
    kv_event_order_disconnect(&waiting);

    cr_assert(not(replaying.is_replaying));
    cr_assert(eq(int, kv_event_order_reply(&replaying, 0, 1), KV_EVENT_DUPLICATE));
    cr_assert(not(waiting.is_waiting));
    cr_assert(eq(int, kv_event_order_live(&waiting, 0, 7, 0), KV_EVENT_DELIVER));
}

/* Any sequence of messages: a verdict is reached in three judgements, and what is delivered rises
 * by one, but for holes that were said. */
Test(kv_event_order, every_message_finds_its_verdict_whatever_came_before)
{
    uint64_t random = 1;
    struct kv_event_order order = order_at(true, 0);

    for (uint64_t now_ms = 0; now_ms < 200000; now_ms += 7) {
        enum kv_event_verdict verdict = KV_EVENT_LOST;
        unsigned judgement_count = 0;
        random = random * 6364136223846793005U + 1442695040888963407U;
        uint64_t sequence = order.next + (random >> 60) - 4;

        if (order.is_replaying && random >> 33 & 1)
            kv_event_order_replay_end(&order, now_ms);
        (void)!kv_event_order_is_due(&order, now_ms);
        while (verdict == KV_EVENT_LOST || verdict == KV_EVENT_RESTARTED) {
            uint64_t next = order.next;

            cr_assert(judgement_count++ < 3);
            verdict = kv_event_order_live(&order, sequence, (double)now_ms, now_ms);
            if (verdict == KV_EVENT_DELIVER)
                cr_assert(sequence == next && order.next == next + 1);
        }
    }
}
