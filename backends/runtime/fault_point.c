/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/fault_point.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * DESIGN
 * The one thing in here that is global: where to die is a property of the process, set once before
 * any thread is. SIGKILL cannot be caught, and nothing is flushed or unlocked on the way: a crash
 * of the machine's power apart, there is no worse end.
 */

#define FAULT_POINT_NAME(constant, name) [constant] = name,
static const char *const names[] = {FAULT_POINT_ROWS(FAULT_POINT_NAME)};
static_assert(sizeof names / sizeof *names == FAULT_POINT_COUNT, "a name for each");

static int fatal = -1; /* enum fault_point, or none */
static atomic_ulong passes_left;

const char *fault_point_name(enum fault_point point)
{
    return names[point];
}

int fault_point_init(void)
{
    const char *text = getenv("SAMOVAR_FAULT_POINT");
    unsigned long count = 1;
    size_t len;

    fatal = -1;
    if (text == NULL || *text == '\0')
        return 0;
    len = strcspn(text, ":");
    if (text[len] == ':') {
        char *end;

        count = strtoul(text + len + 1, &end, 10);
        if (*end != '\0' || count == 0)
            return -EINVAL;
    }
    for (int i = 0; i < FAULT_POINT_COUNT; i++)
        if (strlen(names[i]) == len && memcmp(names[i], text, len) == 0)
            fatal = i;
    atomic_store(&passes_left, count);
    return fatal < 0 ? -EINVAL : 0;
}

void fault_point_pass(enum fault_point point)
{
    if (fatal != (int)point)
        return;
    if (atomic_fetch_sub(&passes_left, 1) == 1)
        kill(getpid(), SIGKILL);
}
