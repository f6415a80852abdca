/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/checksum_wide.h"

#include <assert.h>

/* A kind of processor that has one width, which the compiler uses anyway. */

bool checksum_wide_is_there(void)
{
    return false;
}

uint64_t checksum_wide(const void *bytes, size_t len)
{
    (void)bytes;
    (void)len;
    assert(!"asked before: it is not there");
    return 0;
}
