/* SPDX-License-Identifier: Apache-2.0 */

#include "router/poison_table.h"

#include <assert.h>
#include <string.h>

#include "hashing/digest.h"

/*
 * DESIGN
 *
 *   body -> set -> | suspect | suspect | ... 8 ways |      the oldest of a set makes room
 *
 * Of fixed size, so that nothing a client sends can make it grow; mostly empty, and then asking it
 * costs one comparison. Who fills a set of it has killed eight workers.
 *
 * One death proves nothing: whatever else ran on that worker died with it. Neither do two deaths of
 * many copies of one body on one worker, so the victims must differ. And since a popular body (a
 * monitor's) may well be there when two workers are restarted, or one node takes two with it,
 * poison is put on trial again and again, ever more rarely, and one good answer acquits it.
 */
enum { END_BYTES = 56 }; /* 128 bytes in all, the most that XXH3 takes in its short way */

void poison_table_init(struct poison_table *table, uint64_t memory_ms)
{
    memset(table, 0, sizeof *table);
    table->memory_ms = memory_ms;
}

static bool is_remembered(const struct poison_table *table, const struct poison_suspect *suspect,
                          uint64_t now_ms)
{
    uint64_t since_ms = suspect->is_poison ? suspect->until_ms : suspect->at_ms;

    return suspect->body != 0 && now_ms < since_ms + table->memory_ms;
}

static struct poison_suspect *find(struct poison_table *table, uint64_t body)
{
    struct poison_suspect *set = table->suspects[body % POISON_SET_COUNT];

    for (size_t way = 0; way < POISON_WAY_COUNT; way++) {
        if (set[way].body == body)
            return &set[way];
    }
    return NULL;
}

/* A free place in body's set, or its oldest. */
static struct poison_suspect *make_room(struct poison_table *table, uint64_t body)
{
    struct poison_suspect *set = table->suspects[body % POISON_SET_COUNT];
    struct poison_suspect *oldest = &set[0];

    for (size_t way = 0; way < POISON_WAY_COUNT; way++) {
        if (set[way].body == 0)
            return &set[way];
        if (set[way].at_ms < oldest->at_ms)
            oldest = &set[way];
    }
    return oldest;
}

bool poison_table_add(struct poison_table *table, uint64_t body, struct poison_victim victim,
                      uint64_t now_ms)
{
    struct poison_suspect *suspect;

    if (table->memory_ms == 0 || body == 0)
        return false;
    suspect = find(table, body);
    if (suspect == NULL || !is_remembered(table, suspect, now_ms)) {
        if (suspect == NULL)
            suspect = make_room(table, body);
        table->count += suspect->body == 0;
        *suspect = (struct poison_suspect){.body = body, .at_ms = now_ms, .first = victim};
        return false;
    }
    suspect->at_ms = now_ms;
    if (suspect->is_poison)
        suspect->wait_ms *= 4;
    else if (suspect->first.worker != victim.worker ||
             suspect->first.restart_count != victim.restart_count)
        suspect->wait_ms = POISON_WAIT_MS;
    else
        return false;
    if (suspect->wait_ms > table->memory_ms)
        suspect->wait_ms = table->memory_ms;
    suspect->is_poison = true;
    suspect->until_ms = now_ms + suspect->wait_ms;
    return true;
}

/* NULL: it is no poison, or none any more. */
static struct poison_suspect *find_poison(struct poison_table *table, uint64_t body,
                                          uint64_t now_ms)
{
    struct poison_suspect *suspect;

    if (table->count == 0 || body == 0)
        return NULL;
    suspect = find(table, body);
    return suspect != NULL && suspect->is_poison && is_remembered(table, suspect, now_ms) ? suspect
                                                                                          : NULL;
}

enum poison_verdict poison_table_ask(struct poison_table *table, uint64_t body, uint64_t now_ms)
{
    struct poison_suspect *poison = find_poison(table, body, now_ms);

    if (poison == NULL)
        return POISON_UNKNOWN;
    if (now_ms < poison->until_ms)
        return POISON_REFUSED;
    poison->until_ms = now_ms + poison->wait_ms;
    return POISON_TRIAL;
}

uint64_t poison_table_wait_ms(struct poison_table *table, uint64_t body, uint64_t now_ms)
{
    const struct poison_suspect *poison = find_poison(table, body, now_ms);

    return poison != NULL && now_ms < poison->until_ms ? poison->until_ms - now_ms : 0;
}

void poison_table_clear(struct poison_table *table, uint64_t body)
{
    struct poison_suspect *suspect;

    if (table->count == 0 || body == 0)
        return;
    suspect = find(table, body);
    if (suspect == NULL)
        return;
    *suspect = (struct poison_suspect){0};
    table->count--;
}

uint64_t poison_body_name(const uint8_t *secret, uint64_t prompt, const char *body, size_t len)
{
    struct {
        uint64_t prompt;
        uint64_t len;
        char start[END_BYTES];
        char end[END_BYTES];
    } name = {.prompt = prompt, .len = len};
    size_t end_len = len < END_BYTES ? len : END_BYTES;

    static_assert(sizeof name == 128, "no padding");
    memcpy(name.start, body, end_len);
    memcpy(name.end, body + len - end_len, end_len);
    return digest_64(secret, DIGEST_BODY, &name, sizeof name);
}
