/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_sync.h"

#include <assert.h>
#include <stdlib.h>

#include "backends/runtime/random.h"
#include "router/residency/residency_sync_parts.h"

/*
 * DESIGN
 *
 * Pages and changes say the same thing, and a flush writes both at once. So:
 *
 *     BEGIN     L = last change
 *     PAGES     all pages, while flushes go on: some are older than others
 *     END       E = last change, with the count and digest after it
 *     CATCH_UP  changes L+1 .. E: each says how a block is held from then on, so applying one to
 *               a page that has it already does no harm
 *     FOLLOW    after E count and digest agree, or it was all for nothing
 *
 * From there each change has to be the next one and has to bring its own digest about. Whatever
 * does not fit is answered in one way: read anew, after a back-off that doubles until a replica has
 * been exact for some time. So a Redis that loses everything, an agent that is restarted, a stream
 * that was trimmed under a slow router and a byte that was flipped need no cases of their own.
 *
 * A replica is read into a copy beside the one that is looked at, which stays, as a guess, until
 * the new one agrees. Another life begins with neither: what an earlier process of an agent, or an
 * earlier cache of its engine, held is not there.
 *
 * Whether an agent is believed is no state of the replica: the lease comes and goes beside it, and
 * a replica that is still exact when it comes back is exact at once.
 */

enum { SWEEP_SLOT_COUNT = 32768, FAILED_BACK_OFF_LEVEL = 2, CAPACITY_BACK_OFF_LEVEL = 9 };

/* ---- moves ---- */

int residency_sync_state_after(enum residency_sync_state state, enum residency_sync_event event)
{
    enum {
        NO = -1,
        NIL = RESIDENCY_SYNC_NOTHING,
        BEG = RESIDENCY_SYNC_BEGIN,
        PAG = RESIDENCY_SYNC_PAGES,
        END = RESIDENCY_SYNC_END,
        CAT = RESIDENCY_SYNC_CATCH_UP,
        FOL = RESIDENCY_SYNC_FOLLOW,
        OFF = RESIDENCY_SYNC_BACK_OFF
    };
    /* clang-format off */
    static const int8_t table[RESIDENCY_SYNC_STATE_COUNT][RESIDENCY_SYNC_EVENT_COUNT] = {
        /*              LIFE DUE  BEGUN PAGED ENDED AGREED BROKEN FORGET */
        [NIL] =        {BEG, NO,  NO,   NO,   NO,   NO,    NO,    NIL},
        [BEG] =        {BEG, NO,  PAG,  NO,   NO,   NO,    OFF,   NIL},
        [PAG] =        {BEG, NO,  NO,   END,  NO,   NO,    OFF,   NIL},
        [END] =        {BEG, NO,  NO,   NO,   CAT,  FOL,   OFF,   NIL},
        [CAT] =        {BEG, NO,  NO,   NO,   NO,   FOL,   OFF,   NIL},
        [FOL] =        {BEG, NO,  NO,   NO,   NO,   NO,    OFF,   NIL},
        [OFF] =        {BEG, BEG, NO,   NO,   NO,   NO,    NO,    NIL},
    };
    /* clang-format on */

    assert((size_t)state < RESIDENCY_SYNC_STATE_COUNT);
    assert((size_t)event < RESIDENCY_SYNC_EVENT_COUNT);

    return table[state][event];
}

static void move(struct replica *replica, enum residency_sync_event event)
{
    int next = residency_sync_state_after(replica->state, event);

    assert(next >= 0);

    replica->state = (enum residency_sync_state)next;
    replica->ticket++; /* another wish, or none */
}

/* ---- life ---- */

struct residency_sync *residency_sync_create(struct residency_index *index,
                                             struct residency_sync_config config)
{
    struct residency_sync *sync = calloc(1, sizeof *sync);

    if (sync == NULL)
        return NULL;
    sync->index = index;
    sync->config = config;
    residency_holders_init(&sync->holders, index);
    return sync;
}

void residency_sync_destroy(struct residency_sync *sync)
{
    if (sync == NULL)
        return;
    for (size_t i = 0; i < RESIDENCY_SYNC_WORKER_COUNT_MAX; i++)
        free(sync->replicas[i]);
    free(sync);
}

static struct replica *find_replica(const struct residency_sync *sync, uint32_t worker)
{
    assert(worker < RESIDENCY_SYNC_WORKER_COUNT_MAX);

    return sync->replicas[worker];
}

static struct replica *replica_of(struct residency_sync *sync, uint32_t worker)
{
    struct replica *replica = find_replica(sync, worker);

    if (replica != NULL)
        return replica;
    replica = calloc(1, sizeof *replica);
    if (replica == NULL)
        abort(); /* bookkeeping, of a worker that takes more elsewhere */
    residency_copy_init(&replica->shown);
    residency_copy_init(&replica->filling);
    sync->replicas[worker] = replica;
    return replica;
}

static void drop_copies(struct residency_sync *sync, struct replica *replica)
{
    residency_copy_drop(&replica->filling, &sync->holders);
    residency_copy_drop(&replica->shown, &sync->holders);
}

static void forget_life(struct residency_sync *sync, struct replica *replica)
{
    move(replica, RESIDENCY_SYNC_EVENT_FORGET);
    drop_copies(sync, replica);
    replica->life = (struct residency_life){0, 0};
    replica->exact_ms = 0;
    replica->is_over = false;
}

void residency_sync_forget(struct residency_sync *sync, uint32_t worker)
{
    struct replica *replica = find_replica(sync, worker);

    if (replica == NULL)
        return;
    drop_copies(sync, replica);
    free(replica);
    sync->replicas[worker] = NULL;
}

/* ---- what goes wrong ---- */

static uint64_t back_off_ms(struct residency_sync *sync, uint32_t level)
{
    uint64_t span_ms = RESIDENCY_SYNC_BACK_OFF_MS;

    while (level-- > 0 && span_ms < RESIDENCY_SYNC_BACK_OFF_MS_MAX)
        span_ms *= 2;
    if (span_ms > RESIDENCY_SYNC_BACK_OFF_MS_MAX)
        span_ms = RESIDENCY_SYNC_BACK_OFF_MS_MAX;
    /* Three quarters to all of it, so that routers do not read anew in step. */
    return span_ms - random_next(&sync->config.seed) % (span_ms / 4 + 1);
}

/* Read anew, later. What was looked at until now stays, as a guess. */
static void break_off(struct residency_sync *sync, struct replica *replica,
                      enum residency_break reason, uint64_t now_ms)
{
    if (replica->exact_ms > 0 && now_ms - replica->exact_ms >= RESIDENCY_SYNC_SETTLED_MS)
        replica->back_off_level = 0;
    if (reason == RESIDENCY_BREAK_CAPACITY)
        replica->back_off_level = CAPACITY_BACK_OFF_LEVEL;
    /* That Redis was away says nothing about this replica. */
    if (reason == RESIDENCY_BREAK_FAILED)
        replica->due_ms = now_ms + back_off_ms(sync, FAILED_BACK_OFF_LEVEL);
    else
        replica->due_ms = now_ms + back_off_ms(sync, replica->back_off_level++);
    replica->exact_ms = 0;
    replica->stalled_ms = 0;
    replica->break_count++;
    replica->last_break = reason;
    sync->stats.breaks_total[reason]++;
    residency_copy_drop(&replica->filling, &sync->holders);
    move(replica, RESIDENCY_SYNC_EVENT_BROKEN);
}

static bool is_reading(const struct replica *replica)
{
    return replica->state != RESIDENCY_SYNC_NOTHING && replica->state != RESIDENCY_SYNC_BACK_OFF;
}

void residency_sync_broken(struct residency_sync *sync, uint32_t worker,
                           enum residency_break reason, uint64_t now_ms)
{
    struct replica *replica = find_replica(sync, worker);

    if (replica != NULL && is_reading(replica))
        break_off(sync, replica, reason, now_ms);
}

/* A record is at least a token of prompt, each a different one: a bound that no honest agent meets,
 * and that keeps a rogue one from filling the index. */
static bool claims_too_much(const struct replica *replica, const struct residency_copy *copy)
{
    return replica->has_meta && replica->meta.cache_tokens > 0 &&
           copy->tier_counts[0] > replica->meta.cache_tokens;
}

/* True: copy is beyond what can be, and dropped with the other one. */
static bool check_capacity(struct residency_sync *sync, struct replica *replica,
                           const struct residency_copy *copy, uint64_t now_ms)
{
    if (!claims_too_much(replica, copy))
        return false;
    break_off(sync, replica, RESIDENCY_BREAK_CAPACITY, now_ms);
    drop_copies(sync, replica);
    replica->is_over = true;
    return true;
}

/* ---- what its agent says ---- */

void residency_sync_polled(struct residency_sync *sync, uint64_t now_ms)
{
    sync->polled_ms = now_ms;
}

void residency_sync_meta(struct residency_sync *sync, uint32_t worker,
                         const struct residency_meta *meta, uint64_t now_ms)
{
    struct replica *replica = replica_of(sync, worker);

    replica->meta = *meta;
    replica->has_meta = true;
    if (is_reading(replica))
        (void)check_capacity(sync, replica, &replica->shown, now_ms);
}

static bool is_same_life(struct residency_life a, struct residency_life b)
{
    return a.epoch == b.epoch && a.generation == b.generation;
}

/* That of its lease. */
static void begin_life(struct residency_sync *sync, struct replica *replica, uint64_t now_ms)
{
    const struct residency_lease *lease = &replica->lease;
    const bool is_rival = replica->life.epoch != 0 && replica->life.epoch != lease->life.epoch &&
                          replica->life.epoch != lease->after_epoch &&
                          now_ms < replica->life_ms + RESIDENCY_SYNC_RIVALS_MS;

    drop_copies(sync, replica);
    move(replica, RESIDENCY_SYNC_EVENT_LIFE);
    replica->life = lease->life;
    replica->life_ms = now_ms;
    replica->exact_ms = 0;
    replica->stalled_ms = 0;
    replica->is_over = false;
    sync->stats.lives_total++;
    if (is_rival)
        break_off(sync, replica, RESIDENCY_BREAK_RIVALS, now_ms);
}

/* The lease is renewed behind the changes it counts: where it stays ahead of what came, something
 * is not coming. */
static void watch_lag(struct residency_sync *sync, struct replica *replica, uint64_t now_ms)
{
    if (replica->state != RESIDENCY_SYNC_FOLLOW || replica->lease.sequence <= replica->sequence) {
        replica->stalled_ms = 0;
    } else if (replica->stalled_ms == 0 || replica->stalled_sequence != replica->sequence) {
        replica->stalled_ms = now_ms;
        replica->stalled_sequence = replica->sequence;
    } else if (now_ms - replica->stalled_ms > RESIDENCY_SYNC_STALLED_MS) {
        break_off(sync, replica, RESIDENCY_BREAK_STALLED, now_ms);
    }
}

void residency_sync_lease(struct residency_sync *sync, uint32_t worker,
                          const struct residency_lease *lease, uint64_t now_ms)
{
    struct replica *replica = lease != NULL ? replica_of(sync, worker) : find_replica(sync, worker);

    if (lease == NULL) {
        if (replica != NULL)
            replica->has_lease = false;
        return;
    }
    replica->has_lease = true;
    replica->lease = *lease;
    replica->is_stranger = lease->fingerprint != sync->config.fingerprint;
    if (replica->is_stranger) {
        if (replica->state != RESIDENCY_SYNC_NOTHING)
            forget_life(sync, replica);
        return;
    }
    replica->lease_ms = now_ms;
    if (!is_same_life(lease->life, replica->life))
        begin_life(sync, replica, now_ms);
    else
        watch_lag(sync, replica, now_ms);
}

/* ---- reading ---- */

/* Asks for the pages that there are, and for one more: it shows whether that was all. */
static void ask_pages(struct replica *replica)
{
    uint32_t count = replica->lease.page_count;

    replica->page_end = (replica->page > count ? replica->page : count) + 1;
    replica->ticket++;
}

static void begin_pages(struct residency_sync *sync, struct replica *replica, uint64_t now_ms)
{
    if (residency_index_stats(sync->index).bytes > sync->config.index_bytes_max / 2)
        residency_copy_drop(&replica->shown, &sync->holders);
    if (replica->lease.page_count > RESIDENCY_SYNC_PAGE_COUNT_MAX) {
        break_off(sync, replica, RESIDENCY_BREAK_CAPACITY, now_ms);
        replica->is_over = true;
        return;
    }
    if (!residency_copy_begin(&replica->filling, &sync->holders)) {
        break_off(sync, replica, RESIDENCY_BREAK_HOLDERS, now_ms);
        return;
    }
    move(replica, RESIDENCY_SYNC_EVENT_BEGUN);
    replica->page = 0;
    ask_pages(replica);
}

/* It is exact: the new copy is the one that is looked at. */
static void agree(struct residency_sync *sync, struct replica *replica, uint64_t now_ms)
{
    residency_copy_drop(&replica->shown, &sync->holders);
    replica->shown = replica->filling;
    residency_copy_init(&replica->filling);
    replica->exact_ms = now_ms;
    replica->is_over = false;
    move(replica, RESIDENCY_SYNC_EVENT_AGREED);
}

static void end_pages(struct residency_sync *sync, struct replica *replica, uint64_t sequence,
                      const struct residency_change *change, uint64_t now_ms)
{
    uint64_t count = change != NULL ? change->count : 0;
    uint64_t digest = change != NULL ? change->digest : 0;

    if (sequence < replica->sequence) {
        break_off(sync, replica, RESIDENCY_BREAK_EXPIRED, now_ms);
    } else if (sequence > replica->sequence) {
        replica->end_sequence = sequence;
        replica->batch_sequence = replica->sequence;
        move(replica, RESIDENCY_SYNC_EVENT_ENDED);
    } else if (residency_copy_agrees(&replica->filling, count, digest)) {
        agree(sync, replica, now_ms);
    } else {
        break_off(sync, replica, RESIDENCY_BREAK_DIGEST, now_ms);
    }
}

void residency_sync_last(struct residency_sync *sync, uint32_t worker, uint64_t sequence,
                         const struct residency_change *change, uint64_t now_ms)
{
    struct replica *replica = find_replica(sync, worker);

    if (replica == NULL)
        return;
    if (change == NULL)
        sequence = 0;
    if (replica->state == RESIDENCY_SYNC_END) {
        end_pages(sync, replica, sequence, change, now_ms);
    } else if (replica->state == RESIDENCY_SYNC_BEGIN) {
        if (change == NULL && replica->lease.sequence > 0) {
            break_off(sync, replica, RESIDENCY_BREAK_EXPIRED, now_ms);
            return;
        }
        replica->sequence = sequence;
        begin_pages(sync, replica, now_ms);
    }
}

static void take_records(struct residency_sync *sync, struct residency_copy *copy,
                         struct slice records)
{
    residency_copy_apply(copy, &sync->holders, records);
    sync->stats.records_total += records.len / RESIDENCY_RECORD_BYTES;
}

void residency_sync_page(struct residency_sync *sync, uint32_t worker, uint32_t page,
                         struct slice bytes, uint64_t now_ms)
{
    struct replica *replica = find_replica(sync, worker);

    if (replica == NULL || replica->state != RESIDENCY_SYNC_PAGES || page != replica->page)
        return;
    if (bytes.len % RESIDENCY_RECORD_BYTES != 0 ||
        bytes.len > (size_t)RESIDENCY_PAGE_RECORD_COUNT * RESIDENCY_RECORD_BYTES) {
        break_off(sync, replica, RESIDENCY_BREAK_UNREADABLE, now_ms);
        return;
    }
    take_records(sync, &replica->filling, bytes);
    if (check_capacity(sync, replica, &replica->filling, now_ms))
        return;
    replica->page++;
    if (bytes.len == 0 && page >= replica->lease.page_count)
        move(replica, RESIDENCY_SYNC_EVENT_PAGED);
    else if (replica->page > RESIDENCY_SYNC_PAGE_COUNT_MAX)
        break_off(sync, replica, RESIDENCY_BREAK_CAPACITY, now_ms);
    else if (replica->page == replica->page_end)
        ask_pages(replica);
}

void residency_sync_change(struct residency_sync *sync, uint32_t worker, uint64_t sequence,
                           const struct residency_change *change, uint64_t now_ms)
{
    struct replica *replica = find_replica(sync, worker);
    struct residency_copy *copy;
    bool is_following;

    if (replica == NULL || sequence <= replica->sequence ||
        (replica->state != RESIDENCY_SYNC_FOLLOW && replica->state != RESIDENCY_SYNC_CATCH_UP))
        return;
    is_following = replica->state == RESIDENCY_SYNC_FOLLOW;
    copy = is_following ? &replica->shown : &replica->filling;
    if (sequence != replica->sequence + 1) {
        break_off(sync, replica, RESIDENCY_BREAK_GAP, now_ms);
        return;
    }
    take_records(sync, copy, change->records);
    replica->sequence = sequence;
    sync->stats.changes_total++;
    if (check_capacity(sync, replica, copy, now_ms))
        return;
    /* On the way the pages are ahead in part: only at the end the sum is that of one moment. */
    if (!is_following && sequence < replica->end_sequence)
        return;
    if (!residency_copy_agrees(copy, change->count, change->digest))
        break_off(sync, replica, RESIDENCY_BREAK_DIGEST, now_ms);
    else if (!is_following)
        agree(sync, replica, now_ms);
}

void residency_sync_no_more(struct residency_sync *sync, uint32_t worker, uint64_t now_ms)
{
    struct replica *replica = find_replica(sync, worker);

    if (replica == NULL || replica->state != RESIDENCY_SYNC_CATCH_UP)
        return;
    if (replica->sequence == replica->batch_sequence) {
        break_off(sync, replica, RESIDENCY_BREAK_GAP, now_ms);
        return;
    }
    replica->batch_sequence = replica->sequence;
    replica->ticket++;
}

void residency_sync_tick(struct residency_sync *sync, uint64_t now_ms)
{
    for (uint32_t i = 0; i < RESIDENCY_SYNC_WORKER_COUNT_MAX; i++) {
        struct replica *replica = sync->replicas[i];

        if (replica == NULL || replica->state == RESIDENCY_SYNC_NOTHING)
            continue;
        if (now_ms - replica->lease_ms > RESIDENCY_SYNC_KEPT_MS)
            forget_life(sync, replica);
        else if (replica->state == RESIDENCY_SYNC_BACK_OFF && replica->has_lease &&
                 now_ms >= replica->due_ms && !residency_sync_is_away(sync, now_ms))
            move(replica, RESIDENCY_SYNC_EVENT_DUE);
    }
    (void)residency_index_sweep(sync->index, SWEEP_SLOT_COUNT);
}

struct residency_wish residency_sync_wish(const struct residency_sync *sync, uint32_t worker)
{
    const struct replica *replica = find_replica(sync, worker);
    struct residency_wish wish = {.kind = RESIDENCY_WISH_NOTHING};

    if (replica == NULL)
        return wish;
    wish.ticket = replica->ticket;
    wish.life = replica->life;
    switch (replica->state) {
    case RESIDENCY_SYNC_BEGIN:
    case RESIDENCY_SYNC_END:
        wish.kind = RESIDENCY_WISH_LAST;
        break;
    case RESIDENCY_SYNC_PAGES:
        wish.kind = RESIDENCY_WISH_PAGE;
        wish.page = replica->page;
        wish.page_count = replica->page_end - replica->page;
        break;
    case RESIDENCY_SYNC_CATCH_UP:
        wish.kind = RESIDENCY_WISH_CHANGES;
        wish.sequence = replica->sequence + 1;
        break;
    case RESIDENCY_SYNC_FOLLOW:
        wish.kind = RESIDENCY_WISH_FOLLOW;
        wish.sequence = replica->sequence + 1;
        break;
    default:
        break;
    }
    return wish;
}
