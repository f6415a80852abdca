/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/fake_cuda/fake_order.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * All accesses that somebody might not know lie in one list, which a waiting host shortens. It is
 * walked for every access: tests have some hundreds. The caller holds the fake's lock.
 */
struct access {
    struct fake_moment moment;
    uint64_t begin;
    uint64_t end;
    bool is_written;
    const char *what;
};

static struct access *accesses;
static size_t access_count, access_room;
static char kept_fault[FAKE_FAULT_BYTES];
static bool keeps_faults;

void fake_known_add(struct fake_known *known, const struct fake_known *more)
{
    for (size_t i = 0; i < FAKE_STREAMS_MAX; i++) {
        if (known->counts[i] < more->counts[i])
            known->counts[i] = more->counts[i];
    }
}

static bool knows(const struct fake_known *known, struct fake_moment moment)
{
    return known->counts[moment.stream] >= moment.count;
}

static void remember(struct access access)
{
    if (access_count == access_room) {
        access_room = access_room == 0 ? 256 : access_room * 2;
        accesses = realloc(accesses, access_room * sizeof *accesses);
        if (accesses == NULL)
            abort();
    }
    accesses[access_count++] = access;
}

static void complain(const struct access *before, const struct access *now)
{
    if (before->moment.stream == now->moment.stream && before->moment.count == now->moment.count)
        fake_fault("%s and %s of one operation overlap: they have no order", before->what,
                   now->what);
    else if (now->is_written && !before->is_written)
        fake_fault("%s writes what %s still reads: nothing orders them", now->what, before->what);
    else if (now->is_written)
        fake_fault("%s writes what %s still writes: nothing orders them", now->what, before->what);
    else
        fake_fault("%s reads what %s has not written yet: nothing orders them", now->what,
                   before->what);
}

void fake_order_access(struct fake_moment moment, const struct fake_known *known, uint64_t address,
                       size_t len, bool is_written, const char *what)
{
    struct access now = {moment, address, address + len, is_written, what};

    for (size_t i = 0; i < access_count; i++) {
        struct access *before = &accesses[i];

        if (before->begin < now.end && now.begin < before->end &&
            (before->is_written || is_written) && !knows(known, before->moment))
            complain(before, &now);
    }
    remember(now);
}

bool fake_order_is_used(const struct fake_known *host, uint64_t address, size_t len)
{
    for (size_t i = 0; i < access_count; i++) {
        if (accesses[i].begin < address + len && address < accesses[i].end &&
            !knows(host, accesses[i].moment))
            return true;
    }
    return false;
}

void fake_order_forget(const struct fake_known *host)
{
    size_t kept = 0;

    for (size_t i = 0; i < access_count; i++) {
        if (!knows(host, accesses[i].moment))
            accesses[kept++] = accesses[i];
    }
    access_count = kept;
}

void fake_order_reset(void)
{
    free(accesses);
    accesses = NULL;
    access_count = access_room = 0;
    kept_fault[0] = '\0';
}

/* ---- faults ---- */

void fake_fault(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(kept_fault, sizeof kept_fault, format, args);
    va_end(args);
    if (keeps_faults)
        return;
    fprintf(stderr, "fake_cuda: %s\n", kept_fault);
    abort();
}

void fake_fault_keep(bool is_kept)
{
    keeps_faults = is_kept;
    kept_fault[0] = '\0';
}

const char *fake_fault_kept(void)
{
    return kept_fault;
}
