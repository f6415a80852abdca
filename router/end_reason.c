/* SPDX-License-Identifier: Apache-2.0 */

#include "router/end_reason.h"

#include <assert.h>
#include <stddef.h>

const char *end_reason_name(enum end_reason reason)
{
    static const char *const names[] = {
#define END_REASON_NAME(constant, name, meaning) [constant] = name,
        END_REASON_ROWS(END_REASON_NAME)
#undef END_REASON_NAME
    };

    assert((size_t)reason < END_REASON_COUNT);

    return names[reason];
}

const char *end_reason_meaning(enum end_reason reason)
{
    static const char *const meanings[] = {
#define END_REASON_MEANING(constant, name, meaning) [constant] = meaning,
        END_REASON_ROWS(END_REASON_MEANING)
#undef END_REASON_MEANING
    };

    assert((size_t)reason < END_REASON_COUNT);

    return meanings[reason];
}
